"""Other ways to clip gradients: without a wait, with a norm from elsewhere, each by itself, by value."""

import math

import numpy as np

from ..autograd import bump
from ..errors import bad_value, check_float, located
from ..grad_arithmetic import norm_of, scale_grads
from ..grad_store import GradStore, TensorId
from ..tensor import Tensor
from .clip import EPSILON, Chosen, check_positive, chosen_grads, non_finite


def clip_grad_norm_async(grads: GradStore, max_norm: float, params: Chosen = None) -> Tensor:
    """``clip_grad_norm(..., error_if_nonfinite=False)`` whose norm stays on the gradients' device: float64 (), so that
    the program goes on before a GPU has computed it. ``norm.item()`` waits.

    Raises ValueError unless max_norm > 0, and for gradients of several devices, which the program must add up itself.
    """
    check_positive("max_norm", max_norm)
    chosen = list(chosen_grads(grads, params).values())
    devices = {grad.device for grad in chosen}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise bad_value(f"the gradients are on {names}; clip_grad_norm adds up the norms of several devices")
    if not chosen:
        return Tensor(np.zeros((), np.float64))
    device = chosen[0].device
    norm = device.kernels.grad_norm.clip_([grad.data for grad in chosen], max_norm, EPSILON)
    bump(chosen)
    return Tensor.wrap(norm, device)


def clip_grads_with_norm(grads: GradStore, max_norm: float, total_norm: float, params: Chosen = None) -> None:
    """Scale the gradients by max_norm / (total_norm + 1e-6) if ``total_norm`` is more than ``max_norm``: the second
    half of ``clip_grad_norm``, for a norm measured elsewhere, such as over the gradients of several processes.

    Raises ValueError unless max_norm > 0 and total_norm is finite.
    """
    check_positive("max_norm", max_norm)
    if check_float("total_norm", total_norm, -math.inf) > max_norm:
        scale_grads(chosen_grads(grads, params).values(), max_norm / (total_norm + EPSILON))


def clip_grad_norm_per_param(
    grads: GradStore, max_norm: float, params: Chosen = None, *, error_if_nonfinite: bool = True
) -> list[tuple[TensorId, float]]:
    """``clip_grad_norm`` for each gradient by itself; returns (id, norm before clipping) of each, in the fixed order.

    Errors as ``clip_grad_norm``; if one norm is infinite or NaN, no gradient is scaled.
    """
    check_positive("max_norm", max_norm)
    chosen = chosen_grads(grads, params)
    norms = [norm_of([grad]) for grad in chosen.values()]
    for norm in norms:
        if not math.isfinite(norm) and error_if_nonfinite:
            raise located(non_finite(norm, chosen))
    for grad, norm in zip(chosen.values(), norms):
        if math.isfinite(norm) and norm > max_norm:
            scale_grads([grad], max_norm / (norm + EPSILON))
    return [(TensorId(number), norm) for number, norm in zip(chosen, norms)]


def clip_grad_value(grads: GradStore, max_value: float, params: Chosen = None) -> None:
    """Limit every element of the gradients to [-max_value, max_value]; NaN stays NaN.

    Raises ValueError unless max_value > 0.
    """
    check_positive("max_value", max_value)
    for grad in chosen_grads(grads, params).values():
        elementwise = grad.device.kernels.elementwise
        elementwise.assign(grad.data, elementwise.clamp(grad.data, -max_value, max_value))
        grad.bump_version()
