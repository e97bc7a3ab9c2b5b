"""The tensors of a module, loaded and converted: what ``Module.load_state_dict`` and ``Module.to`` do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..autograd import no_grad
from ..device import Device
from ..dtypes import is_floating
from ..errors import bad_type, bad_value
from ..tensor import Tensor


def convert(module: Any, *args: Any, dtype: Any, device: str | Device | None) -> None:
    """``Module.to``."""
    tensors = [*module.parameters(), *module.buffers()]
    with no_grad():
        converted = [tensor.detach().to(*args, dtype=dtype, device=device) for tensor in tensors]
    for i, (tensor, new) in enumerate(zip(tensors, converted, strict=True)):
        if tensor.is_floating_point() and not new.is_floating_point():
            raise bad_type(f"{type(module).__name__}.to: weights are floating tensors, {new.dtype} is no such dtype")
        if not tensor.is_floating_point():
            converted[i] = tensor.detach().to(device=new.device)
    for tensor, new in zip(tensors, converted, strict=True):
        tensor.data, tensor.device = new.data, new.device
        tensor.bump_version()


def load(module: Any, state: Mapping[str, Any], strict: bool) -> None:
    """``Module.load_state_dict``."""
    if not isinstance(state, Mapping):
        raise bad_type(
            f"load_state_dict takes a mapping from names to arrays, not {type(state).__name__}; "
            "minigrad.serialization.load_safetensors(path) reads one"
        )
    own: dict[str, Tensor] = {}
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    for table in ("_parameters", "_buffers"):
        for name, tensor, _ in module._named_tensors(table, "", skip_transient=True):
            own[name] = tensor
            names.setdefault(first.setdefault(id(tensor), name), []).append(name)
    problems = [
        f"missing: {name}" for name, all_names in names.items() if strict and not any(n in state for n in all_names)
    ]
    problems += [f"unexpected: {name}" for name in state if strict and name not in own]
    for name, tensor in own.items():
        if name in state:
            value = state[name]
            if tuple(value.shape) != tensor.shape:
                problems.append(f"shape: {name} is {tuple(value.shape)} in the state, {tensor.shape} in the module")
            elif is_floating(value.dtype) != tensor.is_floating_point():
                problems.append(f"dtype: {name} is {value.dtype} in the state, {tensor.dtype} in the module")
    for all_names in names.values():
        given = [n for n in all_names if n in state]
        if len(given) > 1 and not all(_equal(state[given[0]], state[n]) for n in given[1:]):
            problems.append(f"shared: {' and '.join(given)} are one parameter but have different values")
    if problems:
        listing = "\n  ".join(problems)
        raise bad_value(f"{type(module).__name__}: the state does not fit the module:\n  {listing}")
    with no_grad():
        for name, tensor in own.items():
            if name in state:
                tensor.copy_(state[name])


def _equal(a: Any, b: Any) -> bool:
    a, b = (np.asarray(t.data if isinstance(t, Tensor) else t) for t in (a, b))
    return bool(np.array_equal(a, b, equal_nan=is_floating(a.dtype) and is_floating(b.dtype)))
