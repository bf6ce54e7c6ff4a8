"""What quantizing a float weight cost, whether that is what it should cost, and if not, why."""
