"""Methods of Tensor: random values, in place or drawn with the tensor's values as probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import dtypes
from ..errors import located
from ..random import Generator, draw

if TYPE_CHECKING:
    from ..tensor import Tensor


class SamplingMethods:
    """See the module."""

    __slots__ = ()

    def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0, generator: Generator | None = None) -> Tensor:
        """Uniform random values in [low, high), in place."""
        self._change("uniform_")
        k = self.device.kernels
        values = draw("uniform", k, self.shape, self.dtype, generator)
        k.elementwise.assign(self.data, k.elementwise.add(k.elementwise.mul(values, high - low), low))
        return self

    def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
        """Normal random values, in place."""
        self._change("normal_")
        k = self.device.kernels
        values = draw("normal", k, self.shape, self.dtype, generator)
        k.elementwise.assign(self.data, k.elementwise.add(k.elementwise.mul(values, std), mean))
        return self

    def bernoulli(self: Tensor, *, generator: Generator | None = None) -> Tensor:
        """A new tensor: 1 with the probability that this one (floating, in [0, 1]) gives for the place, else 0."""
        if not self.is_floating_point():
            raise located(
                TypeError(f"bernoulli of a {self.dtype} tensor: probabilities are floating; convert with .float()")
            )
        if not ((self >= 0) & (self <= 1)).all():
            raise located(
                ValueError(
                    f"bernoulli: expected probabilities in [0, 1], not {self.amin().item()} to {self.amax().item()}"
                )
            )
        k = self.device.kernels
        values = draw("uniform", k, self.shape, dtypes.float64, generator)
        return self.wrap(k.elementwise.cast(k.comparison.lt(values, self.data), self.dtype), self.device)

    def multinomial(
        self: Tensor,
        num_samples: int,
        replacement: bool = False,
        *,
        generator: Generator | None = None,
    ) -> Tensor:
        """Indices (int64, shape (..., num_samples)) drawn in proportion to the last dimension's weights.

        Without ``replacement`` no index comes twice in a row: each draw is from those that are left (by exponential
        clocks; Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).

        Raises ValueError for weights that are negative, not finite, or all zero in a row, and for more samples without
        replacement than a row has weights above 0.
        """
        w = self.detach().double()
        bad = not w.isfinite().all() or (w < 0).any() or (w.sum(-1) == 0).any()
        if bad or not w.ndim or not w.shape[-1]:
            raise located(ValueError("multinomial: weights must be finite, non-negative, and not all zero in a row"))
        if num_samples < 0:
            raise located(ValueError(f"multinomial: num_samples={num_samples}; expected 0 or more"))
        once = not replacement and num_samples > 1
        shape = w.shape if once else (*w.shape[:-1], num_samples)
        if once and w.numel() and num_samples > (w > 0).sum(-1).amin():
            positive = (w > 0).sum(-1).amin().item()
            raise located(
                ValueError(
                    f"multinomial: num_samples={num_samples} without replacement, but a row has {positive} weights "
                    "above 0; pass replacement=True"
                )
            )
        u = self.wrap(draw("uniform", w.device.kernels, shape, dtypes.float64, generator), w.device)
        if once:
            clocks = (-(-u).log1p()).log() - w.log()  # logarithms of exponential times: none overflows
            return clocks.topk(num_samples, largest=False).indices
        edges = (w / w.amax(-1, keepdim=True)).cumsum(-1)  # scaled, so that no sum overflows or is subnormal
        points = u * edges[..., -1:]
        # The first edge above the point; a weight of 0 has an empty interval, so it is never drawn.
        return (edges.unsqueeze(-2) <= points.unsqueeze(-1)).sum(-1)
