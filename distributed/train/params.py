"""How trainers are told which parameters there are, and what is checked of them and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from minigrad.dtypes import float16
from minigrad.grad_store import GradStore, TensorId
from minigrad.optim import Optimizer
from minigrad.tensor import Tensor

Params = Mapping[TensorId, Tensor] | Iterable[Tensor | tuple[str, Tensor]]
Named = list[tuple[str, Tensor]]


def named_params(params: Params) -> Named:
    """Pairs (name, tensor) of boostr's ``{TensorId: Tensor}``, of tensors, or of such pairs.

    A tensor without a name is called by its position. A mapping is taken in order of its ids, that of creation: not
    that of insertion, which may change. Raises TypeError for a module and for what is no collection.
    """
    if not isinstance(params, Iterable) or isinstance(params, Tensor):
        raise TypeError(f"params is a {type(params).__name__}, expected a model's parameters: model.named_parameters()")
    entries = [params[key] for key in sorted(params)] if isinstance(params, Mapping) else list(params)
    return [entry if isinstance(entry, tuple) else (str(i), entry) for i, entry in enumerate(entries)]


def by_own_id(grads: GradStore, params: Params) -> GradStore:
    """``grads``, in which a gradient under a mapping's key is now under the id of that key's tensor."""
    if isinstance(params, Mapping) and isinstance(grads, GradStore):
        for key, p in params.items():
            if isinstance(key, TensorId) and key != p._id and (grad := grads.remove(key)) is not None:
                grads.insert(p, grad)
    return grads


def add_missing(optimizer: Optimizer, named: Named, allowed: bool) -> None:
    """Add the trained parameters that the optimizer does not know; ValueError if that is not ``allowed``."""
    known = {p._id for group in optimizer.param_groups for p in group["params"]}
    missing = [(name, p) for name, p in named if p.requires_grad and p._id not in known]
    if missing and not allowed:
        raise ValueError(
            f"parameters {', '.join(name for name, _ in missing[:5])}"
            + (f" ... ({len(missing)} in all)" if len(missing) > 5 else "")
            + " require grad but are not in the optimizer, "
            "so they would never change; add them with optimizer.add_param_group, or freeze them"
        )
    if missing:
        optimizer.add_param_group({"params": missing})


def wanted_grads(grads: GradStore, named: Named) -> GradStore:
    """The parameters' gradients, taken out of ``grads``.

    Raises TypeError for something that is no GradStore, and ValueError for gradients of other tensors only, and for one
    that does not fit its parameter.
    """
    if not isinstance(grads, GradStore):
        raise TypeError(f"step takes the GradStore that loss.backward() returned, not {type(grads).__name__}")
    wanted = grads.take([p._id for _, p in named])
    if not wanted and not grads.is_empty():
        raise ValueError(
            f"none of the {len(grads)} gradients belongs to any of the {len(named)} parameters, so nothing would "
            "be trained; pass model.parameters() anew to each step (a generator gives its parameters only once)"
        )
    for name, p in named:
        grad = wanted.get(p._id)
        if grad is None:
            continue
        g, x = grad.data, p.data
        fits = g.shape == x.shape and (g.dtype is x.dtype or g.dtype == x.dtype)
        if not fits or grad.device is not p.device:
            raise misfit(f"the gradient of parameter {name}", grad, p)
    return GradStore(wanted)


def misfit(what: str, grad: Tensor, p: Tensor) -> ValueError:
    """The error for a gradient that does not fit its parameter."""
    return ValueError(
        f"{what} has shape {grad.shape}, {grad.dtype}, on {grad.device}; the parameter has {p.shape}, {p.dtype}, on "
        f"{p.device}"
    )


def has_float16(named: Named) -> bool:
    """Whether a trained parameter is float16."""
    return any(p.dtype == float16 for _, p in named if p.requires_grad)


def power_of_two(x: float) -> float:
    """The largest one that is not above ``x``, by which dividing rounds nothing; 1 for 0."""
    return math.ldexp(1.0, math.frexp(x)[1] - 1) if x else 1.0
