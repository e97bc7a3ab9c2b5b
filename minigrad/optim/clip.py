"""The gradients' norm, and clipping in place. ``clip_more.py`` has the other ways to clip.

The sum of squares is accumulated in float64. On a GPU, float32 squares are added in float32 within blocks of some
thousand. The order is fixed, that of ``params`` or of the tensors' creation. So replicas that hold the same gradients
clip by the same factor to the last bit.
"""

import math
from collections.abc import Iterable
from typing import TypeAlias

from ..autograd import bump
from ..errors import bad_value, located
from ..grad_arithmetic import norm_of, scale_grads
from ..grad_store import GradStore, TensorId, check_grads
from ..tensor import Tensor

Chosen: TypeAlias = Iterable[Tensor | TensorId] | None  # whose gradients; None: all
EPSILON = 1e-6  # of PyTorch: the clipped norm is max_norm * norm / (norm + 1e-6)


class NonFiniteGradientError(RuntimeError):
    """The norm of the gradients is infinite or NaN; no gradient was changed.

    ``norm`` is that norm, ``first`` the number of the first tensor whose gradient is not finite, where that is known.
    """

    def __init__(self, message: str, norm: float, first: int | None = None) -> None:
        super().__init__(message)
        self.norm = norm
        self.first: int | None = first


def grad_norm(grads: GradStore, params: Chosen = None) -> float:
    """The norm of the gradients, taken as one vector, as ``clip_grad_norm`` returns it, without clipping.

    ``params`` (tensors or ids) restricts it to their gradients. 0.0 where there are none; a norm that is infinite or
    NaN is returned as such.
    """
    return norm_of(list(chosen_grads(grads, params).values()))


def clip_grad_norm(
    grads: GradStore, max_norm: float, params: Chosen = None, *, error_if_nonfinite: bool = True
) -> float:
    """Scale the gradients by max_norm / (norm + 1e-6) if their norm, taken as one vector, is more than ``max_norm``.

    Returns the norm before clipping. ``params`` (tensors or ids) restricts both norm and clipping to their gradients;
    without it all of ``grads`` count. 0.0 is returned where there are none.

    Raises ValueError unless max_norm > 0, and NonFiniteGradientError for an infinite or NaN norm, before anything is
    scaled. With ``error_if_nonfinite=False`` such a norm is returned and the gradients are left as they are.
    """
    check_positive("max_norm", max_norm)
    chosen = chosen_grads(grads, params)
    members = list(chosen.values())
    if len(devices := {grad.device for grad in members}) == 1:
        device = devices.pop()
        arrays = [grad.data for grad in members]
        norm = float(device.kernels.to_host(device.kernels.grad_norm.clip_(arrays, max_norm, EPSILON)))
        if max_norm < norm < math.inf:  # all was started before the wait
            bump(members)
    else:
        norm = norm_of(members)
        if max_norm < norm < math.inf:
            scale_grads(members, max_norm / (norm + EPSILON))
    if error_if_nonfinite and not math.isfinite(norm):
        raise located(non_finite(norm, chosen))
    return norm


def chosen_grads(grads: GradStore, params: Chosen) -> dict[int, Tensor]:
    """The gradients in question by the numbers of their ids, in an order that does not depend on how the store was
    filled.
    """
    check_grads("clipping", grads, "grads = loss.backward(); clip_grad_norm(grads, max_norm)")
    if params is None:
        return grads.select(sorted(grads.numbers()))
    return grads.select([p if isinstance(p, TensorId) else p._id for p in params])


def non_finite(norm: float, chosen: dict[int, Tensor]) -> NonFiniteGradientError:
    """The error for gradients of this norm: how many are not finite, and which is the first."""
    bad = [(number, grad) for number, grad in chosen.items() if not math.isfinite(norm_of([grad]))]
    text, first = f"the gradient norm is {norm}, from finite gradients: it overflows; nothing was changed", None
    if bad:
        first, grad = bad[0]
        where = f"the first is that of tensor {first} of shape {grad.shape}; nothing was changed"
        text = f"the gradient norm is {norm}; {len(bad)} of {len(chosen)} gradients are not finite, {where}"
    return NonFiniteGradientError(text, norm, first)


def check_positive(name: str, value: float) -> None:
    """ValueError unless ``value`` > 0."""
    if not value > 0:  # also NaN
        raise bad_value(f"{name} is {value!r}, expected a number > 0 (to turn clipping off, do not call it)")
