"""What a transformer computes: softmax and norms of rows; products of matrices, linear layers, attention and the
rotation of its queries and keys.
"""

from typing import Any

import numpy as np

from .arrays import reduce
from .elementwise import gelu, quiet
from .random import mask

Norm = tuple[np.ndarray, np.ndarray, np.ndarray]


class softmax:
    """y = e^(x - m) / sum(e^(x - m)), m = max(x);  dx = y (dy - sum(dy y)).

    log y = x - m - log(sum(e^(x - m)));  dx = dy - e^(log y) sum(dy).
    """

    @quiet
    def forward(x: np.ndarray, axis: int) -> np.ndarray:
        """softmax(x) along ``axis``; x float32 or float64, any shape."""
        e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
        return np.asarray(e / e.sum(axis, keepdims=True))

    @quiet
    def backward(dy: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        """dx from dy and the result y of ``forward``."""
        return y * (dy - (dy * y).sum(axis, keepdims=True))

    @quiet
    def log_forward(x: np.ndarray, axis: int) -> np.ndarray:
        """log(softmax(x)) along ``axis``."""
        below = x - x.max(axis, keepdims=True, initial=-np.inf)
        return np.asarray(below - np.log(np.exp(below).sum(axis, keepdims=True)))

    @quiet
    def log_backward(dy: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        """dx from dy and the result y of ``log_forward``."""
        return dy - np.exp(y) * dy.sum(axis, keepdims=True)


class layer_norm:
    """Rows of x (N, C) (Ba, Kiros & Hinton 2016), with g = dy * weight, and means over a row:

    xhat = (x - mean(x)) rstd      rstd = 1 / sqrt(mean((x - mean(x))^2) + eps)      y = xhat * weight + bias
    dx = rstd (g - mean(g) - xhat mean(g xhat))      dweight = sum over rows of dy * xhat      dbias = of dy
    """

    @quiet
    def forward(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> Norm:
        """x (N, C), weight and bias (C,) -> y (N, C), mean (N,), rstd (N,); all of x's dtype."""
        mean = reduce.mean(x, (1,), False)
        rstd = 1 / np.sqrt(reduce.mean(np.square(x - mean[:, None]), (1,), False) + x.dtype.type(eps))
        return (x - mean[:, None]) * rstd[:, None] * weight + bias, mean, rstd

    @quiet
    def backward(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, mean: np.ndarray, rstd: np.ndarray) -> Norm:
        """dy, x (N, C), mean and rstd (N,) of forward -> dx (N, C), dweight (C,), dbias (C,)."""
        xhat, g = (x - mean[:, None]) * rstd[:, None], dy * weight
        dx = rstd[:, None] * (g - reduce.mean(g, (1,), True) - xhat * reduce.mean(g * xhat, (1,), True))
        return dx, (dy * xhat).sum(0), dy.sum(0)


class rms_norm:
    """Rows of x (N, C) by their root mean square (Zhang & Sennrich 2019), with g = dy * weight, and means over a row:

    xhat = x rstd      rstd = 1 / sqrt(mean(x^2) + eps)      y = xhat * weight
    dx = rstd (g - xhat mean(g xhat))      dweight = sum over rows of dy * xhat
    """

    @quiet
    def forward(x: np.ndarray, weight: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
        """x (N, C), weight (C,) -> y (N, C), rstd (N,); all of x's dtype."""
        rstd = 1 / np.sqrt(reduce.mean(np.square(x), (1,), False) + x.dtype.type(eps))
        return x * rstd[:, None] * weight, rstd

    @quiet
    def backward(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, rstd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """dy, x (N, C) and rstd (N,) of forward -> dx (N, C), dweight (C,)."""
        xhat, g = x * rstd[:, None], dy * weight
        return rstd[:, None] * (g - xhat * reduce.mean(g * xhat, (1,), True)), (dy * xhat).sum(0)


class matmul:
    """y = a b (+ bias): the products of matrices whose leading dimensions broadcast."""

    @quiet
    def matmul(a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        """a (..., M, K), b (..., K, N), bias (N,) -> (..., M, N). Raises ValueError if the shapes do not fit."""
        check_shapes(a, b, bias)
        y = np.matmul(a, b)
        return y if bias is None else y + bias

    def supports_half(x: np.ndarray) -> bool:
        """False: float16 and bfloat16 arrive as float32."""
        return False


def check_shapes(a: np.ndarray, b: np.ndarray, bias: np.ndarray | None) -> None:
    """ValueError if the operands of ``matmul`` do not fit."""
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        expected = "(..., M, K) and (..., K, N) with the same K and broadcastable leading dimensions"
        raise ValueError(f"matmul of {a.shape} and {b.shape}: expected {expected}")
    if bias is not None and bias.shape != b.shape[-1:]:
        raise ValueError(f"matmul: bias of shape {bias.shape}, expected {b.shape[-1:]}, one value per column of b")


class linear:
    """y = x W^T + b (+ r);  dx = dy W, dW = dy^T x, db = sum of dy over the rows."""

    def forward(
        x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, residual: np.ndarray | None = None
    ) -> np.ndarray:
        """x (N, K), weight (M, K), bias (M,), residual (N, M), all of one dtype -> residual + x W^T + b (N, M), new."""
        y = matmul.matmul(x, weight.T, bias)
        return y if residual is None else y + residual

    def forward_gelu(
        x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, approximate: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """x (N, K), weight (M, K), bias (M,) -> gelu(h) and h = x W^T + b, both (N, M)."""
        before = linear.forward(x, weight, bias)
        return gelu.forward(before, approximate), before

    def backward(
        dy: np.ndarray, x: np.ndarray | None, weight: np.ndarray | None, needs: tuple[bool, bool, bool]
    ) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
        """dy (N, M), x (N, K), weight (M, K) -> dx, dW and db (M,), None where ``needs`` says that it is not wanted.

        x may be None unless dW is wanted, weight unless dx is.
        """
        dx = matmul.matmul(dy, weight) if needs[0] and weight is not None else None
        dweight = matmul.matmul(dy.T, x) if needs[1] and x is not None else None
        return dx, dweight, dy.sum(0) if needs[2] else None

    def add_weight_gradient(dweight: np.ndarray, dy: np.ndarray, x: np.ndarray) -> None:
        """dW += dy^T x: dW (M, K), dy (N, M), x (N, K)."""
        dweight += matmul.matmul(dy.T, x)

    def backward_gelu(
        dy: np.ndarray, weight: np.ndarray, before: np.ndarray, approximate: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """For y = gelu(h) W^T: dy (N, M), weight (M, K), before = h (N, K) -> dh = (dy W) gelu'(h), and gelu(h)."""
        return gelu.backward(matmul.matmul(dy, weight), before, approximate), gelu.forward(before, approximate)


Options = tuple[bool, float, float, int, int]  # causal, scale, and dropout's probability, seed and offset


class attention:
    """y = (P M) v with P = softmax(scale q k^T), rows cut at the diagonal if causal, M the mask of dropout.

    dv = (P M)^T dy      dS = P (M dy v^T - sum(dy y))      dq = scale dS k      dk = scale dS^T q

    P has rows of Tk probabilities for each of the Tq queries: the other backends never store it, this one does.
    Several query heads may share a key-value head (Ainslie et al., "GQA", 2023).
    """

    def supports_half(x: np.ndarray) -> bool:
        """False: float16 and bfloat16 arrive as float32."""
        return False

    @quiet
    def forward(q: np.ndarray, k: np.ndarray, v: np.ndarray, options: Options) -> tuple[np.ndarray, np.ndarray]:
        """q (B, H, Tq, D), k and v (B, Hkv, Tk, D) with H a multiple of Hkv -> y (B, H, Tq, D) and lse (B, H, Tq).

        lse is the logarithm of each row's softmax denominator, for ``backward``. Query i sees the keys j <= i if
        causal. Element (b, h, i, j) of the mask (B, H, Tq, Tk) is dropout's. Without keys y is 0.
        """
        scores = _scores(q, k, options)
        lse = reduce.logsumexp(scores, (3,), True)
        y = _masked(np.exp(scores - lse), options) @ _for_queries(v, q)
        return y.astype(q.dtype, copy=False), lse[..., 0].astype(q.dtype, copy=False)

    @quiet
    def backward(
        dy: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray, lse: np.ndarray, options: Options
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The gradients (dq, dk, dv) of sum(dy * y), shaped like q, k, v."""
        scale = options[1]
        p = np.exp(_scores(q, k, options) - lse[..., None])
        dp = _masked(dy @ _for_queries(v, q).swapaxes(2, 3), options)
        ds = scale * p * (dp - (dy * out).sum(-1, keepdims=True))
        dk, dv = ds.swapaxes(2, 3) @ q, _masked(p, options).swapaxes(2, 3) @ dy
        of_heads = k.shape[0], k.shape[1], -1, *k.shape[2:]
        dk, dv = (g if g.shape == k.shape else g.reshape(of_heads).sum(2) for g in (dk, dv))
        dq, dk, dv = (g.astype(q.dtype, copy=False) for g in (ds @ _for_queries(k, q), dk, dv))
        return dq, dk, dv

    def backward_packed(
        dy: np.ndarray, qkv: np.ndarray, out: np.ndarray, lse: np.ndarray, options: Options
    ) -> np.ndarray:
        """``backward`` where one array qkv (B, T, 3, H, D) holds q, k and v: their gradients as one array like it."""
        q, k, v = (qkv[:, :, i].swapaxes(1, 2) for i in range(3))
        grads = attention.backward(dy, q, k, v, out, lse, options)
        return np.stack([grad.swapaxes(1, 2) for grad in grads], 2)

    def extend(q: np.ndarray, k: np.ndarray, v: np.ndarray, cache: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Append k and v (B, Hkv, 1, D) to the ``length`` (1,) tokens in a cache; q (B, H, 1, D) then sees all of them
        -> y (B, H, 1, D). The cache is keys and values (2, B, Hkv, max_tokens, D)."""
        tokens = int(length[0]) + 1
        cache[0, :, :, tokens - 1 : tokens], cache[1, :, :, tokens - 1 : tokens] = k, v
        keys, values = cache[:, :, :, :tokens]
        return attention.forward(q, keys, values, (False, q.shape[-1] ** -0.5, 0.0, 0, 0))[0]


def _for_queries(x: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The key-value heads x (B, Hkv, Tk, D), one for each query head of q."""
    return x if x.shape[1] == q.shape[1] else np.repeat(x, q.shape[1] // x.shape[1], 1)


def _scores(q: np.ndarray, k: np.ndarray, options: Options) -> np.ndarray:
    """scale q k^T, (B, H, Tq, Tk); -inf where a query does not see a key."""
    causal, scale, *_ = options
    scores = scale * (q @ _for_queries(k, q).swapaxes(2, 3))
    return np.where(np.tri(*scores.shape[2:], dtype=np.bool_), scores, -np.inf) if causal else scores


def _masked(p: np.ndarray, options: Options) -> np.ndarray:
    *_, dropout_p, seed, offset = options
    return p * mask(p.shape, p.dtype, dropout_p, seed, offset) if dropout_p else p


class rope:
    """Rotary position embedding (Su et al. 2021): the D / 2 pairs of a row at position p are rotated by the angles
    p base^(-2j / D):  (a, b) -> (a cos - b sin, a sin + b cos).

    Pair j is (x[2j], x[2j + 1]) if ``interleaved``, else (x[j], x[j + D/2]). The gradient is the rotation by the
    negative angles. Angles are computed in float64: at position 10^6 float32 would be off by 0.06.
    """

    def tables(positions: np.ndarray, dim: int, base: float, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """Cosine and sine (*positions.shape, dim / 2) of the angles, rounded to ``dtype``."""
        return rope.angle_tables(positions, float(base) ** (np.arange(0, dim, 2) / -max(dim, 1)), dtype)

    def angle_tables(positions: np.ndarray, frequencies: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """`tables` of the angles positions * frequencies; frequencies (dim / 2,) float64."""
        angles = positions.astype(np.float64)[..., None] * frequencies
        return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)

    def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
        """x (..., D); cos and sin (..., D / 2) of x's dtype, whose leading sizes broadcast to x's -> y (..., D)."""
        half = x.shape[-1] // 2
        first = np.s_[..., 0::2] if interleaved else np.s_[..., :half]
        second = np.s_[..., 1::2] if interleaved else np.s_[..., half:]
        a, b, y = x[first], x[second], np.empty(x.shape, x.dtype)
        y[first], y[second] = a * cos - b * sin, a * sin + b * cos
        return y
