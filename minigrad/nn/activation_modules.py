"""Activations as modules: the functions of ``nn.functional`` with their options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ..tensor import Tensor
from . import functional as F
from .module import Module


class _Activation(Module):
    """A function of x and of the options, which are attributes of the module."""

    _function: ClassVar[Callable[..., Tensor]]

    def __init__(self) -> None:
        self._start()

    def _start(self, **options: Any) -> None:
        super().__init__()
        self._options = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same (``GLU``: (..., 2 n, ...) -> (..., n, ...))."""
        return type(self)._function(x, *[getattr(self, name) for name in self._options])

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._options)


class ReLU(_Activation):
    """max(x, 0)."""

    _function = F.relu


class Tanh(_Activation):
    """Hyperbolic tangent."""

    _function = F.tanh


class LeakyReLU(_Activation):
    """x where x > 0, else negative_slope * x."""

    negative_slope: float
    _function = F.leaky_relu

    def __init__(self, negative_slope: float = 0.01) -> None:
        self._start(negative_slope=negative_slope)


class SiLU(_Activation):
    """x sigmoid(x)."""

    _function = F.silu


class Sigmoid(_Activation):
    """1 / (1 + exp(-x))."""

    _function = F.sigmoid


class Softmax(_Activation):
    """exp(x) along ``dim``, divided by its sum."""

    dim: int
    _function = F.softmax

    def __init__(self, dim: int) -> None:
        self._start(dim=dim)


class LogSoftmax(_Activation):
    """log of the softmax along ``dim``."""

    dim: int
    _function = F.log_softmax

    def __init__(self, dim: int) -> None:
        self._start(dim=dim)


class ELU(_Activation):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    alpha: float
    _function = F.elu

    def __init__(self, alpha: float = 1.0) -> None:
        self._start(alpha=alpha)


class Softplus(_Activation):
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""

    beta: float
    threshold: float
    _function = F.softplus

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self._start(beta=beta, threshold=threshold)


class SELU(_Activation):
    """``ELU`` scaled so that mean 0 and variance 1 are kept (Klambauer et al. 2017)."""

    _function = F.selu


class Mish(_Activation):
    """x tanh(softplus(x)) (Misra 2019)."""

    _function = F.mish


class LogSigmoid(_Activation):
    """log(sigmoid(x)), computed without overflow."""

    _function = F.logsigmoid


class ReLU6(_Activation):
    """x limited to [0, 6]."""

    _function = F.relu6


class Hardswish(_Activation):
    """x relu6(x + 3) / 6."""

    _function = F.hardswish


class Hardtanh(_Activation):
    """x limited to [min_val, max_val]."""

    min_val: float
    max_val: float
    _function = F.hardtanh

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self._start(min_val=min_val, max_val=max_val)


class GLU(_Activation):
    """The first half of ``dim`` times the sigmoid of the second (Dauphin et al. 2017)."""

    dim: int
    _function = F.glu

    def __init__(self, dim: int = -1) -> None:
        self._start(dim=dim)
