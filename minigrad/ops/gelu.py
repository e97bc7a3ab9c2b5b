"""The Gaussian error linear unit (Hendrycks and Gimpel 2016), alone and between two linear layers."""

from typing import Any

from .elementwise import FloatFunction
from .linear import OfProducts, rows_of


class Gelu(FloatFunction):
    """y = x Phi(x), Phi the normal distribution function;  dx = (Phi(x) + x phi(x)) dy.

    ``approximate="tanh"`` uses Phi(x) = (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, as GPT-2 does.
    """

    def forward(self, x: Any, approximate: str) -> Any:
        self.saved = (x, approximate)
        return self.kernels.gelu.forward(x, approximate)

    def backward(self, dy: Any) -> Any:
        return self.kernels.gelu.backward(dy, *self.saved)


class FeedForward(OfProducts):
    """y = g V^T + c (+ r) with g = gelu(h), h = x W^T + b;  dg = dy V, dV = dy^T g, dc = sum of dy over the rows,
    dh = dg gelu'(h), and dx, dW, db from dh as in ``Linear``; dr = dy.

    Of the two matrices of the hidden size only h is kept: backward has g from the exponential that gelu' needs.
    """

    def forward(
        self, x: Any, weight: Any, bias: Any, weight2: Any, bias2: Any, residual: Any = None, *, approximate: str
    ) -> Any:
        linear, rows = self.kernels.linear, rows_of(self.kernels, x)
        activation, before = linear.forward_gelu(rows, weight, bias, approximate)
        if True in self.needs:
            self.saved = (rows, weight, before, weight2, approximate, x.shape)
        y = linear.forward(activation, weight2, bias2, None if residual is None else rows_of(self.kernels, residual))
        return y.reshape(*x.shape[:-1], weight2.shape[0])

    def backward(self, dy: Any) -> Any:
        rows, weight, before, weight2, approximate, shape = self.saved
        needs, linear = self.needs, self.kernels.linear
        dy_rows = rows_of(self.kernels, dy)
        dbefore, activation = linear.backward_gelu(dy_rows, weight2, before, approximate)
        _, dweight2, dbias2 = linear.backward(dy_rows, activation, None, (False, needs[3], needs[4]))
        dx, dweight, dbias = linear.backward(dbefore, rows, weight, needs[:3])
        dx = None if dx is None else dx.reshape(shape)
        return (dx, dweight, dbias, dweight2, dbias2, dy)[: len(needs)]
