"""``import minigrad.compat.einops``: einops takes tensors, by the backend that this module defines.

einops finds the classes derived from its own by itself: https://github.com/arogozhnikov/einops. Gradients flow through
its operations, which are minigrad's.
"""

from typing import Any

try:
    from einops._backends import AbstractBackend
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("minigrad.compat.einops needs einops: pip install einops", name="einops") from error

from .. import creation
from ..einstein_sum import einsum
from ..tensor import Tensor


class MinigradBackend(AbstractBackend):
    """What einops asks of a library's arrays."""

    framework_name = "minigrad"

    def is_appropriate_type(self, tensor: Any) -> bool:
        """Whether this backend is for such an array."""
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: Any) -> Tensor:
        """A tensor of an array; of a floating one, a tensor that requires grad."""
        made = creation.tensor(x)
        return made.requires_grad_() if made.is_floating_point() else made

    def to_numpy(self, x: Tensor) -> Any:
        """An array of a tensor."""
        return x.numpy(force=True)

    def arange(self, start: int, stop: int) -> Tensor:
        """start, start + 1, ... below stop."""
        return creation.arange(start, stop)

    def transpose(self, x: Tensor, axes: Any) -> Tensor:
        """The dimensions in the given order."""
        return x.permute(axes)

    def reduce(self, x: Tensor, operation: str, axes: Any) -> Tensor:
        """ "sum", "prod", "mean", "max", "min", "any" or "all" over dimensions."""
        if operation == "prod":
            for axis in sorted(axes, reverse=True):
                x = x.prod(axis)
            return x
        reduced: Tensor = getattr(x, {"max": "amax", "min": "amin"}.get(operation, operation))(tuple(axes))
        return reduced

    def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
        """The tensors along a new first dimension."""
        return creation.stack(tensors)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        """With a dimension of size 1."""
        return x.unsqueeze(new_position)

    def tile(self, x: Tensor, repeats: Any) -> Tensor:
        """Copies side by side."""
        return x.tile(repeats)

    def concat(self, tensors: list[Tensor], axis: int) -> Tensor:
        """The tensors one after the other."""
        return creation.cat(tensors, axis)

    def is_float_type(self, x: Tensor) -> bool:
        """Whether a mean is defined."""
        return x.is_floating_point()

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        """``minigrad.einsum``."""
        return einsum(pattern, *x)
