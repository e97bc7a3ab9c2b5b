"""Tensor and pipeline parallelism. It imports `comm` and `train`."""
