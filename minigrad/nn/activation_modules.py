"""Activations as modules: the functions of ``nn.functional`` with their options."""

from __future__ import annotations

from ..errors import located
from ..tensor import Tensor
from . import functional as F
from .module import Module


class GELU(Module):
    """x Phi(x); ``approximate="tanh"`` is GPT-2's form."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise located(ValueError(f"GELU: approximate={approximate!r}; expected 'none' or 'tanh'"))
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        """The form."""
        return f"approximate={self.approximate!r}"


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.relu(x)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.tanh(x)


class LeakyReLU(Module):
    """x where x > 0, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        """The slope."""
        return f"negative_slope={self.negative_slope}"


class SiLU(Module):
    """x sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.silu(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.sigmoid(x)


class Softmax(Module):
    """exp(x) along ``dim``, divided by its sum."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.softmax(x, self.dim)

    def extra_repr(self) -> str:
        """The dimension."""
        return f"dim={self.dim}"


class LogSoftmax(Module):
    """log of the softmax along ``dim``."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.log_softmax(x, self.dim)

    def extra_repr(self) -> str:
        """The dimension."""
        return f"dim={self.dim}"


class ELU(Module):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.elu(x, self.alpha)

    def extra_repr(self) -> str:
        """The scale."""
        return f"alpha={self.alpha}"


class Softplus(Module):
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """The options."""
        return f"beta={self.beta}, threshold={self.threshold}"


class SELU(Module):
    """``ELU`` scaled so that mean 0 and variance 1 are kept (Klambauer et al. 2017)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.selu(x)


class Mish(Module):
    """x tanh(softplus(x)) (Misra 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.mish(x)


class LogSigmoid(Module):
    """log(sigmoid(x)), computed without overflow."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.logsigmoid(x)


class ReLU6(Module):
    """x limited to [0, 6]."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.relu6(x)


class Hardswish(Module):
    """x relu6(x + 3) / 6."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.hardswish(x)


class Hardtanh(Module):
    """x limited to [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        super().__init__()
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return F.hardtanh(x, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        """The limits."""
        return f"min_val={self.min_val}, max_val={self.max_val}"


class GLU(Module):
    """The first half of ``dim`` times the sigmoid of the second (Dauphin et al. 2017)."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """(..., 2 n, ...) -> (..., n, ...)."""
        return F.glu(x, self.dim)

    def extra_repr(self) -> str:
        """The dimension."""
        return f"dim={self.dim}"
