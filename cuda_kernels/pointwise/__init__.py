"""Elementwise kernels, made from scalar rules. Families import it."""
