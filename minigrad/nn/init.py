"""Initial weights, written in place. A weight is (out_features, in_features), so fan_in is its second size."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..creation import empty, empty_like, from_numpy
from ..errors import bad_value
from ..hints import answering
from ..modes import F, no_grad
from ..random import Source
from ..tensor import Tensor

_skipped: ContextVar[bool] = ContextVar("skipped", default=False)


@contextlib.contextmanager
def skip_init() -> Iterator[None]:
    """Modules made within leave their random initial weights undrawn: for weights that are about to be loaded.

    Nothing is written, so the memory holds anything, and no random numbers are used up.
    """
    token = _skipped.set(True)
    try:
        yield
    finally:
        _skipped.reset(token)


def skipping() -> bool:
    """Whether this is within `skip_init`."""
    return _skipped.get()


def _fills(fill: F, draws: bool = False) -> F:
    """A function that fills a tensor, or on the CPU the array ``p.data``, outside of the graph; what it ``draws`` are
    random numbers, so it does nothing under `skip_init`."""

    @answering
    @functools.wraps(fill)
    def filled(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if draws and _skipped.get():
            return x
        with no_grad():
            return fill(from_numpy(x) if isinstance(x, np.ndarray) else x, *args, **kwargs)

    return filled  # type: ignore[return-value]  # functools.wraps keeps the signature


_draws: Callable[[F], F] = functools.partial(_fills, draws=True)


@_fills
def zeros_(x: Tensor) -> Tensor:
    """All zeros."""
    return x.zero_()


@_fills
def ones_(x: Tensor) -> Tensor:
    """All ones."""
    return x.fill_(1)


@_fills
def constant_(x: Tensor, value: float) -> Tensor:
    """All ``value``."""
    return x.fill_(value)


@_fills
def eye_(x: Tensor) -> Tensor:
    """Ones on the diagonal of a matrix, of any two sizes, and zeros elsewhere."""
    if x.ndim != 2:
        raise bad_value(f"eye_ of shape {x.shape}: expected a matrix")
    return x.copy_(np.eye(x.shape[0], x.shape[1]))


@_draws
def normal_(x: Tensor, mean: float = 0.0, std: float = 1.0, generator: Source = None) -> Tensor:
    """Normal with the given mean and standard deviation."""
    return x.normal_(mean, std, generator)


@_draws
def uniform_(x: Tensor, a: float = 0.0, b: float = 1.0, generator: Source = None) -> Tensor:
    """Uniform in [a, b)."""
    return x.uniform_(a, b, generator)


@_draws
def trunc_normal_(
    x: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Source = None
) -> Tensor:
    """Normal with the given mean and standard deviation, values outside [a, b] drawn again."""
    inside = (_normal_cdf((b - mean) / std) - _normal_cdf((a - mean) / std)) if std > 0 else 0.0
    if not inside > 0.01:
        expected = "an interval that holds at least 1% of the distribution, which is drawn until it hits"
        raise bad_value(f"trunc_normal_: mean={mean}, std={std}, [a, b]=[{a}, {b}]; expected {expected}")
    drawn = empty_like(x).normal_(mean, std, generator)
    while count := int((outside := (drawn < a) | (drawn > b)).sum()):
        drawn[outside] = empty(count, dtype=x.dtype, device=x.device).normal_(mean, std, generator)
    return x.copy_(drawn)


@_draws
def kaiming_uniform_(x: Tensor, a: float = 0.0, generator: Source = None) -> Tensor:
    """Uniform in +-sqrt(6 / ((1 + a^2) fan_in)) (He et al. 2015); ``a`` is the slope of the leaky ReLU that follows."""
    bound = math.sqrt(6 / ((1 + a * a) * max(fan_in(x), 1)))
    return x.uniform_(-bound, bound, generator)


@_draws
def kaiming_normal_(x: Tensor, a: float = 0.0, generator: Source = None) -> Tensor:
    """Normal with variance 2 / ((1 + a^2) fan_in) (He et al. 2015)."""
    return x.normal_(0.0, math.sqrt(2 / ((1 + a * a) * max(fan_in(x), 1))), generator)


@_draws
def xavier_uniform_(x: Tensor, gain: float = 1.0, generator: Source = None) -> Tensor:
    """Uniform in +-gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""
    bound = gain * math.sqrt(6 / max(fan_in(x) + fan_out(x), 1))
    return x.uniform_(-bound, bound, generator)


@_draws
def xavier_normal_(x: Tensor, gain: float = 1.0, generator: Source = None) -> Tensor:
    """Normal with standard deviation gain sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""
    return x.normal_(0.0, gain * math.sqrt(2 / max(fan_in(x) + fan_out(x), 1)), generator)


@_draws
def orthogonal_(x: Tensor, gain: float = 1.0, generator: Source = None) -> Tensor:
    """``gain`` times a matrix (out, product of the other sizes) with orthonormal rows, or columns if there are fewer of
    them. It is drawn uniformly among all such (Saxe et al. 2013)."""
    columns = fan_in(x)
    rows = x.shape[0]
    drawn = empty(max(rows, columns), min(rows, columns), dtype="float64").normal_(0.0, 1.0, generator)
    q, r = np.linalg.qr(drawn.numpy())
    q *= gain * np.where(np.diag(r) < 0, -1.0, 1.0)  # r with a positive diagonal makes q unique, thus uniform
    return x.copy_((q if rows >= columns else q.T).reshape(x.shape))


def fan_in(x: Tensor) -> int:
    """Inputs per output of a weight (out, in, ...): the product of all sizes but the first."""
    if x.ndim < 2:
        raise bad_value(f"fan_in of shape {x.shape}: expected a weight of at least two dimensions")
    return math.prod(x.shape[1:])


def fan_out(x: Tensor) -> int:
    """Outputs per input of a weight (out, in, ...): the product of all sizes but the second."""
    if x.ndim < 2:
        raise bad_value(f"fan_out of shape {x.shape}: expected a weight of at least two dimensions")
    return x.shape[0] * math.prod(x.shape[2:])


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))
