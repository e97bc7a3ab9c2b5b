"""The steps of optimizers, and passes over all gradients. In PyTorch's order of operations, in each parameter's dtype.

A row of ``scalars`` holds a parameter's own numbers, in the order of ``SCALARS``.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .elementwise import quiet


class ParamTable:
    """The arrays that a step updates: parameters, and their states, of one dtype, float32 or float64.

    With ``weights``, of a half dtype, the parameters are their float32 masters, and a step rounds these to the weights.
    Raises ValueError or TypeError, naming the position, for an array that cannot be updated.
    """

    __slots__ = ("arrays", "dtype", "weights")

    def __init__(
        self, params: Sequence[np.ndarray], *states: Sequence[np.ndarray], weights: Sequence[np.ndarray] | None = None
    ) -> None:
        if any(len(arrays) != len(params) for arrays in states):
            counts = " and ".join(str(len(arrays)) for arrays in states)
            raise ValueError(f"{len(params)} parameters, {counts} state arrays: expected as many of each")
        self.dtype: np.dtype[Any] = np.dtype(params[0].dtype if params else np.float32)
        if self.dtype not in (np.float32, np.float64):
            raise TypeError(f"the optimizer kernels update float32 or float64 parameters, not {self.dtype}")
        self.arrays: tuple[list[np.ndarray], ...] = (list(params), *map(list, states))
        for arrays in self.arrays:
            self._check_updated(arrays, self.dtype)
        self.weights: list[np.ndarray] | None = None if weights is None else list(weights)
        if self.weights is not None:
            halves = {w.dtype.name for w in self.weights} or {"float16"}
            if len(self.weights) != len(params) or self.dtype != np.float32 or not halves <= {"float16", "bfloat16"}:
                got = f"{len(params)} masters of {self.dtype} and {len(self.weights)} weights of {', '.join(halves)}"
                raise TypeError(f"{got}: expected as many of both, float32, and float16 or bfloat16")

    def _check_updated(self, arrays: Sequence[np.ndarray], dtype: np.dtype[Any]) -> None:
        for i, (array, p) in enumerate(zip(arrays, self.arrays[0], strict=True)):
            check_array(i, array, dtype, p.size)
            if not array.flags.writeable:
                raise ValueError(f"array {i} of shape {array.shape} is read-only, so it cannot be updated in place")

    def checked(self, grads: Sequence[np.ndarray], scalars: np.ndarray, columns: int) -> Sequence[np.ndarray]:
        """The gradients, in the dtype of the parameters; arguments as ``check``."""
        self.check(grads, scalars, columns)
        return grads if self.weights is None else [g.astype(np.float32) for g in grads]

    def check(self, grads: Sequence[np.ndarray], scalars: np.ndarray, columns: int) -> None:
        """Whether these are arguments of a step.

        grads:   one array for each parameter: its dtype (that of the weights, if there are some), as many elements,
                 C-contiguous
        scalars: float64 (number of parameters, columns); a row is the same for all elements of a parameter

        Raises ValueError or TypeError, naming the position.
        """
        params = self.arrays[0]
        if len(grads) != len(params) or scalars.shape != (len(grads), columns) or scalars.dtype != np.float64:
            expected = f"{len(params)} gradients and float64 scalars of shape ({len(params)}, {columns})"
            got = f"{len(grads)} gradients and scalars of shape {scalars.shape}, {scalars.dtype}"
            raise ValueError(f"{got}: expected {expected}")
        pairs = [*zip(grads, params if self.weights is None else self.weights, strict=True)]
        if False in [g.dtype == p.dtype and g.size == p.size and g.flags.c_contiguous for g, p in pairs]:
            for i, (g, p) in enumerate(pairs):
                check_array(i, g, p.dtype, p.size)

    def rows(
        self, grads: Sequence[np.ndarray], scalars: np.ndarray, columns: int
    ) -> Iterator[tuple[list[np.ndarray], list[Any]]]:
        """Of each parameter the flat arrays (p, g, states), to be changed in place, and its scalars, in its dtype."""
        grads = self.checked(grads, scalars, columns)
        for g, row, (p, *states) in zip(grads, scalars, zip(*self.arrays)):
            yield [array.reshape(-1) for array in (p, g, *states)], [self.dtype.type(value) for value in row]
        for w, p in zip(self.weights or (), self.arrays[0]):
            np.copyto(w, p.reshape(w.shape), casting="unsafe")


def check_array(i: int, array: np.ndarray, dtype: np.dtype[Any], size: int) -> None:
    """Raises TypeError or ValueError for an array that is not C-contiguous, of this dtype and of this size."""
    if array.dtype != dtype:
        raise TypeError(f"array {i} has dtype {array.dtype}, the table has {dtype}")
    if array.size != size:
        raise ValueError(f"array {i} of shape {array.shape} has {array.size} elements, its parameter has {size}")
    if not array.flags.c_contiguous:
        raise ValueError(f"array {i} of shape {array.shape} is not C-contiguous; contiguous() makes it so")


class sgd:
    """SGD (Sutskever, Martens, Dahl & Hinton 2013), without a buffer b in the table only the first and last line.

    g <- g + weight_decay * p
    b <- keep * b + take * g          keep = momentum, take = 1 - dampening; 0 and 1 in the first update
    g <- g + momentum * b  (nesterov)     or     g <- b
    p <- p - lr * g
    """

    SCALARS = ("lr", "weight_decay", "keep", "take", "momentum", "nesterov")
    Table = ParamTable

    @quiet
    def step(table: ParamTable, grads: Sequence[np.ndarray], scalars: np.ndarray) -> None:
        """Update the parameters, and the buffers if the table has them, in place; arguments as ``Table.checked``."""
        for (p, g, *b), (lr, weight_decay, keep, take, momentum, nesterov) in table.rows(grads, scalars, 6):
            g = g + weight_decay * p if weight_decay else g
            if b:
                b[0][:] = keep * b[0] + take * g
                g = g + momentum * b[0] if nesterov else b[0]
            p -= lr * g


class adagrad:
    """AdaGrad (Duchi, Hazan & Singer 2011).

    g <- g + weight_decay * p
    s <- s + g * g
    p <- p - lr * g / (sqrt(s) + eps)
    """

    SCALARS = ("lr", "weight_decay", "eps")
    Table = ParamTable

    @quiet
    def step(table: ParamTable, grads: Sequence[np.ndarray], scalars: np.ndarray) -> None:
        """Update the parameters and the sums of squares in place; arguments as ``Table.checked``."""
        for (p, g, s), (lr, weight_decay, eps) in table.rows(grads, scalars, 3):
            g = g + weight_decay * p if weight_decay else g
            s += g * g
            p -= lr * g / (np.sqrt(s) + eps)


class adamw:
    """AdamW (Loshchilov & Hutter 2019), and Adam (Kingma & Ba 2015).

    g <- g + l2 * p                               Adam's coupled decay; only if the scalars have that column
    m <- m + weight * (g - m)                     weight = 1 - beta1
    v <- v * beta2 + (1 - beta2) * g * g
    p <- p * decay - step_size * m / (sqrt(v) / root + eps)

    decay = 1 - lr * weight_decay, step_size = lr / (1 - beta1^t), root = sqrt(1 - beta2^t).
    """

    SCALARS = ("decay", "weight", "beta2", "one_minus_beta2", "step_size", "root", "eps")
    L2_SCALARS = (*SCALARS, "l2")
    Table = ParamTable

    @quiet
    def step(table: ParamTable, grads: Sequence[np.ndarray], scalars: np.ndarray) -> None:
        """Update the parameters and moments in place; arguments as ``Table.checked``."""
        columns = 8 if scalars.ndim == 2 and scalars.shape[1] == 8 else 7
        for (p, g, m, v), row in table.rows(grads, scalars, columns):
            decay, weight, beta2, one_minus_beta2, step_size, root, eps, *l2 = row
            g = g + l2[0] * p if l2 and l2[0] else g
            m[:] = m + weight * (g - m) if weight < 0.5 else g - (g - m) * (1 - weight)  # torch.lerp: no cancellation
            v[:] = v * beta2 + one_minus_beta2 * g * g
            p[:] = p * decay - step_size * m / (np.sqrt(v) / root + eps)


class lamb:
    """LAMB (You et al. 2020) where the table holds m and v, and LARS (You, Gitman & Ginsburg 2017) where it holds m.

        LAMB                                            LARS
        m <- beta1 * m + (1 - beta1) * g                m <- beta1 * m + (1 - beta1) * (g + weight_decay * p)
        v <- beta2 * v + (1 - beta2) * g * g            u  = m
        u  = (m / correction) / (sqrt(v) / root + eps) + weight_decay * p

        p <- p - lr * ratio * u       ratio = min(norm(p) / norm(u), max_trust_ratio), 1 if one of the norms is 0

    with correction = 1 - beta1^t and root = sqrt(1 - beta2^t); the norms are those of the whole tensor.
    """

    SCALARS = ("lr", "weight_decay", "beta1", "beta2", "correction", "root", "eps", "max_trust_ratio")
    Table = ParamTable

    @quiet
    def step(table: ParamTable, grads: Sequence[np.ndarray], scalars: np.ndarray) -> None:
        """Update the parameters and their moments in place; arguments as ``Table.checked``."""
        real = table.dtype.type
        rows = zip(table.rows(grads, scalars, 8), scalars.tolist())
        for ((p, g, m, *v), row), (lr, _, exact1, exact2, *_, most) in rows:
            _, weight_decay, beta1, beta2, correction, root, eps, _ = row
            m[:] = beta1 * m + real(1 - exact1) * (g if v else g + weight_decay * p)
            u = m
            if v:
                v[0][:] = beta2 * v[0] + real(1 - exact2) * g * g
                u = m / correction / (np.sqrt(v[0]) / root + eps) + weight_decay * p
            of_p, of_u = (np.sqrt(np.float64(grad_norm.sum_of_squares([x]))) for x in (p, u))
            ratio = np.minimum(of_p / of_u, most) if of_p > 0 and of_u > 0 else 1.0
            p -= real(lr * ratio) * u


class grad_norm:
    """Passes over many arrays: the gradients' global norm, clipping and scaling in place, checks for infinities and
    NaN. Squares are summed in float64.
    """

    @quiet
    def sum_of_squares(arrays: Iterable[np.ndarray]) -> float:
        """The sum of the squares of all elements, accumulated in float64; 0.0 for no arrays."""
        return float(sum(np.square(array.astype(np.float64)).sum() for array in arrays))

    @quiet
    def scale_(arrays: Iterable[np.ndarray], factor: float) -> None:
        """array *= factor in place, in each array's dtype.

        Raises ValueError, naming the position, for a read-only array, before anything is changed.
        """
        for array in writable(arrays, "scale_"):
            real = array.dtype if array.dtype.char in "fd" else np.dtype(np.float32)  # float16 would round the factor
            np.copyto(array, array.astype(real, copy=False) * real.type(factor), casting="unsafe")

    def clip_(arrays: Iterable[np.ndarray], max_norm: float, eps: float) -> np.ndarray:
        """array *= max_norm / (norm + eps) in place if the norm of all elements is finite and more than ``max_norm``.

        Returns that norm, float64 (); an array that is given twice counts twice and is changed once.

        Raises ValueError, naming the position, for a read-only array that is to be changed, before anything is.
        """
        arrays = list(arrays)
        norm = math.sqrt(grad_norm.sum_of_squares(arrays))
        if max_norm < norm < math.inf:
            grad_norm.scale_({id(array): array for array in arrays}.values(), max_norm / (norm + eps))
        return np.array(norm)

    def unscale_(arrays: Iterable[np.ndarray], inverse_scale: float) -> np.ndarray:
        """array *= inverse_scale in place, and whether an element of any array was infinite or NaN: int32 (), 0 or 1.

        Raises ValueError, naming the position, for a read-only array, before anything is changed.
        """
        arrays = writable(arrays, "unscale_")
        finite = grad_norm.all_finite(arrays)
        grad_norm.scale_(arrays, inverse_scale)
        return np.array(not finite, np.int32)

    def all_finite(arrays: Iterable[np.ndarray]) -> bool:
        """Whether no element of any array is infinite or NaN."""
        return all(bool(np.isfinite(array).all()) for array in arrays)


def writable(arrays: Iterable[Any], what: str) -> list[Any]:
    """The arrays. Raises ValueError, naming the position, for one that ``what`` cannot write to."""
    arrays = list(arrays)
    for position, array in enumerate(arrays):
        if not array.flags.writeable:
            raise ValueError(f"array {position} of shape {array.shape} is read-only; {what} writes in place")
    return arrays
