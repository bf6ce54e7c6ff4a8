"""Reading bytes: a NumPy reference that is the specification, and Numba kernels equal to it."""
