"""Several families in one launch: a token. Only ``minigrad.fast`` uses them."""

from . import decode

__all__ = ["decode"]
