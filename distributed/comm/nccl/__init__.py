"""Ranks that are GPUs, over NCCL. Reached through `comm`."""
