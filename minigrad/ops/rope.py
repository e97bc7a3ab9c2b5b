"""Rotary position embedding (Su et al. 2021)."""

from typing import Any

from ..autograd import Function


class Rope(Function):
    """y = R x, where R rotates pair j of a row at position p by p base^(-2j / D), or p frequencies[j] if given;
    dx = R^T dy, the rotation back."""

    def forward(self, x: Any, positions: Any, *, base: float, interleaved: bool, frequencies: Any = None) -> Any:
        if frequencies is None:
            cos, sin = self.kernels.rope.tables(positions, x.shape[-1], base, x.dtype)
        else:
            cos, sin = self.kernels.rope.angle_tables(positions, frequencies, x.dtype)
        self.saved = (cos, sin, interleaved)
        return self.kernels.rope.rotate(x, cos, sin, interleaved)

    def backward(self, dy: Any) -> Any:
        cos, sin, interleaved = self.saved
        return self.kernels.rope.rotate(dy, cos, self.kernels.elementwise.neg(sin), interleaved), None
