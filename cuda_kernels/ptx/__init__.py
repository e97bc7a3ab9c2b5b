"""Instructions that Numba has no names for. CUDA kernels import it."""
