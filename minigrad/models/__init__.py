"""Transformer families."""

__all__: list[str] = []
