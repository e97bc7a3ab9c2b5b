"""Ranks that are MPI processes. Reached through `comm`."""
