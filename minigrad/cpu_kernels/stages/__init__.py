"""Several families in one launch: a block, a token, embeddings. Only ``minigrad.fast`` uses them."""

from . import decode, positioned_embedding, transformer_block

__all__ = ["decode", "positioned_embedding", "transformer_block"]
