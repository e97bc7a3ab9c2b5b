"""Initial weights, written in place. A weight is (out_features, in_features), so fan_in is its second size."""

from __future__ import annotations

import math

from ..autograd import no_grad
from ..random import Generator
from ..tensor import Tensor


@no_grad()
def zeros_(x: Tensor) -> Tensor:
    """All zeros."""
    return x.zero_()


@no_grad()
def ones_(x: Tensor) -> Tensor:
    """All ones."""
    return x.fill_(1)


@no_grad()
def normal_(x: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with the given mean and standard deviation."""
    return x.normal_(mean, std, generator)


@no_grad()
def uniform_(x: Tensor, low: float = 0.0, high: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform in [low, high)."""
    return x.uniform_(low, high, generator)


@no_grad()
def kaiming_uniform_(x: Tensor, a: float = 0.0, generator: Generator | None = None) -> Tensor:
    """Uniform in +-sqrt(6 / ((1 + a^2) fan_in)) (He et al. 2015); ``a`` is the slope of the leaky ReLU that follows."""
    bound = math.sqrt(6 / ((1 + a * a) * max(fan_in(x), 1)))
    return x.uniform_(-bound, bound, generator)


@no_grad()
def xavier_uniform_(x: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform in +-gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""
    bound = gain * math.sqrt(6 / max(fan_in(x) + x.shape[0], 1))
    return x.uniform_(-bound, bound, generator)


def fan_in(x: Tensor) -> int:
    """Inputs per output of a weight (out, in, ...): the product of all sizes but the first."""
    if x.ndim < 2:
        raise ValueError(f"fan_in of shape {x.shape}: expected a weight of at least two dimensions")
    return math.prod(x.shape[1:])
