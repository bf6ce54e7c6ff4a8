"""Who writes and reads the bytes, and how: quantizers, arithmetic, layouts, constraints."""
