"""How the CPU kernels are compiled, threaded and vectorised. Only CPU kernels import it."""
