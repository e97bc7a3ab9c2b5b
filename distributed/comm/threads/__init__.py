"""Ranks that are threads of one process. Reached through `comm`."""
