"""Several families in one launch: a block, a token. Only ``minigrad.fast`` uses them."""

from . import decode, transformer_block

__all__ = ["decode", "transformer_block"]
