"""CUDA's programming model on the CPU. Only `platform` and `ptx` import it."""
