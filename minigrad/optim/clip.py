"""The gradients' norm, and clipping in place, by norm or by value.

The sum of squares is accumulated in float64 (on a GPU, float32 squares in float32 within blocks of some thousand) and
in a fixed order (that of ``params``, or of the tensors' creation), so replicas that hold the same gradients clip by the
same factor to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..device import CPU, Device
from ..errors import located
from ..grad_store import GradStore, TensorId, check_grads
from ..tensor import Tensor
from ..versions import bump

EPSILON = 1e-6  # of PyTorch: the clipped norm is max_norm * norm / (norm + 1e-6)


class NonFiniteGradientError(RuntimeError):
    """The norm of the gradients is infinite or NaN; no gradient was changed.

    ``norm`` is that norm, ``first`` the number of the first tensor whose gradient is not finite, where that is known.
    """

    def __init__(self, message: str, norm: float, first: int | None = None) -> None:
        super().__init__(message)
        self.norm = norm
        self.first: int | None = first


def grad_norm(grads: GradStore, params: Iterable[Tensor | TensorId] | None = None) -> float:
    """The norm of the gradients, taken as one vector, as ``clip_grad_norm`` returns it, without clipping.

    ``params`` (tensors or ids) restricts it to their gradients. 0.0 where there are none; a norm that is infinite or
    NaN is returned as such.
    """
    return _norm(list(_chosen(grads, params).values()))


def clip_grad_norm(
    grads: GradStore,
    max_norm: float,
    params: Iterable[Tensor | TensorId] | None = None,
    *,
    error_if_nonfinite: bool = True,
) -> float:
    """Scale the gradients by max_norm / (norm + 1e-6) if their norm, taken as one vector, is more than ``max_norm``.

    Returns the norm before clipping. ``params`` (tensors or ids) restricts both norm and clipping to their gradients;
    without it all of ``grads`` count. 0.0 is returned where there are none.

    Raises ValueError unless max_norm > 0, and NonFiniteGradientError for an infinite or NaN norm, before anything is
    scaled. With ``error_if_nonfinite=False`` such a norm is returned and the gradients are left as they are.
    """
    _check_positive("max_norm", max_norm)
    chosen = _chosen(grads, params)
    norm = _clip(list(chosen.values()), max_norm)
    if error_if_nonfinite and not math.isfinite(norm):
        raise located(_non_finite(norm, chosen))
    return norm


def clip_grad_norm_async(
    grads: GradStore, max_norm: float, params: Iterable[Tensor | TensorId] | None = None
) -> Tensor:
    """``clip_grad_norm(..., error_if_nonfinite=False)`` whose norm stays on the gradients' device: float64 (), so that
    the program goes on before a GPU has computed it. ``norm.item()`` waits.

    Raises ValueError unless max_norm > 0, and for gradients of several devices, which the program must add up itself.
    """
    _check_positive("max_norm", max_norm)
    chosen = list(_chosen(grads, params).values())
    devices = {grad.device for grad in chosen}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise located(ValueError(f"the gradients are on {names}; clip_grad_norm adds up the norms of several devices"))
    if not chosen:
        return Tensor(np.zeros((), np.float64))
    norm = Tensor.wrap(_clip_on_device(chosen, max_norm), chosen[0].device)
    for grad in chosen:
        grad.bump_version()
    return norm


def clip_grads_with_norm(
    grads: GradStore, max_norm: float, total_norm: float, params: Iterable[Tensor | TensorId] | None = None
) -> None:
    """Scale the gradients by max_norm / (total_norm + 1e-6) if ``total_norm`` is more than ``max_norm``: the second
    half of ``clip_grad_norm``, for a norm measured elsewhere, such as over the gradients of several processes.

    Raises ValueError unless max_norm > 0 and total_norm is finite.
    """
    _check_positive("max_norm", max_norm)
    if not math.isfinite(total_norm):
        raise located(ValueError(f"total_norm is {total_norm}, expected a finite number"))
    _limit(list(_chosen(grads, params).values()), max_norm, total_norm)


def clip_grad_norm_per_param(
    grads: GradStore,
    max_norm: float,
    params: Iterable[Tensor | TensorId] | None = None,
    *,
    error_if_nonfinite: bool = True,
) -> list[tuple[TensorId, float]]:
    """``clip_grad_norm`` for each gradient by itself; returns (id, norm before clipping) of each, in the fixed order.

    Errors as ``clip_grad_norm``; if one norm is infinite or NaN, no gradient is scaled.
    """
    _check_positive("max_norm", max_norm)
    chosen = _chosen(grads, params)
    norms = [_norm([grad]) for grad in chosen.values()]
    for norm in norms:
        if not math.isfinite(norm) and error_if_nonfinite:
            raise located(_non_finite(norm, chosen))
    for grad, norm in zip(chosen.values(), norms):
        if math.isfinite(norm) and norm > max_norm:
            _scale([grad], max_norm / (norm + EPSILON))
    return [(TensorId(number), norm) for number, norm in zip(chosen, norms)]


def clip_grad_value(grads: GradStore, max_value: float, params: Iterable[Tensor | TensorId] | None = None) -> None:
    """Limit every element of the gradients to [-max_value, max_value]; NaN stays NaN.

    Raises ValueError unless max_value > 0.
    """
    _check_positive("max_value", max_value)
    for grad in _chosen(grads, params).values():
        elementwise = grad.device.kernels.elementwise
        elementwise.assign(grad.data, elementwise.clamp(grad.data, -max_value, max_value))
        grad.bump_version()


def _chosen(grads: GradStore, params: Iterable[Tensor | TensorId] | None) -> dict[int, Tensor]:
    """The gradients in question by the numbers of their ids, in an order that does not depend on how the store was
    filled.
    """
    check_grads("clipping", grads)
    if params is None:
        return grads.select(sorted(grads.numbers()))
    return grads.select([p if isinstance(p, TensorId) else p._id for p in params])


def by_device(grads: Iterable[Tensor]) -> dict[Device, list[Any]]:
    """The raw arrays on each device, an array that several gradients share only once."""
    arrays: dict[Device, dict[int, Any]] = {}
    for grad in grads:
        arrays.setdefault(grad.device, {})[id(grad.data)] = grad.data
    return {device: list(unique.values()) for device, unique in arrays.items()}


def _norm(grads: list[Tensor]) -> float:
    devices = {id(grad.device): grad.device for grad in grads}.values()
    arrays = [(device, [grad.data for grad in grads if grad.device is device]) for device in devices]
    return math.sqrt(math.fsum([device.kernels.grad_norm.sum_of_squares(a) for device, a in arrays]))


def _clip_on_device(grads: list[Tensor], max_norm: float) -> Any:
    """Clip gradients of one device, none of them if the norm is not finite; the norm, as a raw array of the device."""
    return grads[0].device.kernels.grad_norm.clip_([grad.data for grad in grads], max_norm, EPSILON)


def _clip(grads: list[Tensor], max_norm: float) -> float:
    """Clip, but nothing if the norm is not finite, and return the norm."""
    device = grads[0].device if grads else CPU
    if device.type != "cpu" and all(grad.device is device for grad in grads):
        norm = float(device.kernels.to_host(_clip_on_device(grads, max_norm)))  # all is started before the wait
        if max_norm < norm < math.inf:
            bump(grads)
        return norm
    norm = _norm(grads)
    if math.isfinite(norm):
        _limit(grads, max_norm, norm)
    return norm


def _limit(grads: list[Tensor], max_norm: float, norm: float) -> None:
    if norm > max_norm:
        _scale(grads, max_norm / (norm + EPSILON))


def _scale(grads: list[Tensor], factor: float) -> None:
    for device, arrays in by_device(grads).items():
        device.kernels.grad_norm.scale_(arrays, factor)
    bump(grads)


def _non_finite(norm: float, chosen: dict[int, Tensor]) -> NonFiniteGradientError:
    bad = [(number, grad) for number, grad in chosen.items() if not math.isfinite(_norm([grad]))]
    where = (
        f"; {len(bad)} of {len(chosen)} gradients are not finite" if bad else ", from finite gradients: it overflows"
    )
    if bad:
        number, grad = bad[0]
        where += f", the first is that of tensor {number} of shape {grad.shape}"
    first = bad[0][0] if bad else None
    return NonFiniteGradientError(f"the gradient norm is {norm}{where}; nothing was changed", norm, first)


def _check_positive(name: str, value: float) -> None:
    if not value > 0:  # also NaN
        raise located(ValueError(f"{name} is {value!r}, expected a number > 0 (to turn clipping off, do not call it)"))
