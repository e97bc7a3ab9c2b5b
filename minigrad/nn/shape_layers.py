"""Layers without weights that change the shape, or nothing."""

from __future__ import annotations

from ..tensor import Tensor
from .module import Module


class Identity(Module):
    """x itself: where a layer is expected and none is wanted."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same tensor."""
        return x


class Flatten(Module):
    """Dimensions ``start_dim`` to ``end_dim`` as one; by default all but the first."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Tensor) -> Tensor:
        """(N, *) -> (N, product of *)."""
        return x.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """The dimensions."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Dimension ``dim`` as several of the given sizes, one of which may be -1."""

    dim: int
    unflattened_size: tuple[int, ...]

    def __init__(self, dim: int, unflattened_size: tuple[int, ...]) -> None:
        super().__init__()
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        """(N, product) -> (N, *unflattened_size), for dim 1."""
        return x.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        """The dimension and its sizes."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
