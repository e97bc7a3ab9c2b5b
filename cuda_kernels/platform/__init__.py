"""Arrays, memory, streams, and how kernels are compiled and launched. Every room of the CUDA kernels imports it."""
