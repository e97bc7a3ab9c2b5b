"""Kernels that go over rows: folds, scans, sorting, gathering. Families import it."""
