"""Modules, parameters and layers."""

__all__: list[str] = []
