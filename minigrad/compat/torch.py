"""State dicts of PyTorch's, of modules and of optimizers, both ways by name.

What is read may be a dict of PyTorch's tensors, of NumPy arrays, or what ``load_safetensors`` gives; only what makes
tensors of PyTorch's needs PyTorch.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..creation import from_dlpack, tensor
from ..errors import bad_type, bad_value, expect
from ..nn.module import Module
from ..nn.module_state import IncompatibleKeys
from ..optim.optimizer import Optimizer
from ..tensor import Tensor

Names = Mapping[str, str]  # from a module's name in PyTorch to the one here
# Of groups of parameters there: names, not numbers.
_WITHOUT_EFFECT = {"params", "param_names", "foreach", "fused", "capturable", "differentiable", "initial_lr"}


def tensors(state: Any) -> dict[str, Tensor]:
    """The tensors of a state dict, by name; they share memory with PyTorch's where that is the CPU's.

    Raises TypeError for what is no mapping, or holds something else than arrays of dtypes that minigrad has.
    """
    if not isinstance(state, Mapping):
        raise bad_type(f"a state dict maps names to arrays; this is a {type(state).__name__}: pass its .state_dict()")
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        try:
            there = not isinstance(value, Tensor) and hasattr(value, "detach")
            found[name] = from_dlpack(value.detach().cpu()) if there else tensor(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise bad_type(
                f"{name!r} is a {type(value).__name__}, no array of a dtype that is here: {error}"
            ) from error
    return found


def load_state_dict(
    module: Module, state: Any, *, names: Names | None = None, transposed: Iterable[str] = (), strict: bool = True
) -> IncompatibleKeys:
    """Copy a state dict of PyTorch's into ``module``, as ``Module.load_state_dict`` does; its tensors stay as they are.

    Args:
        state: tensors or arrays by PyTorch's names. Tied weights may come under each of their names.
        names: the modules that have another name there, to the names here: ``{"transformer.layers": "h"}``; "" is the
            whole model.
        transposed: patterns, as of ``fnmatch``, of names here whose matrices are stored (in, out) there, as those of
            ``Conv1D``: ``["*.c_attn.weight"]``.
        strict: refuse names that are missing or unexpected.

    Raises:
        ValueError: it lists all names that are missing, unexpected or of another shape; or two names become one.
        TypeError: an entry is no array.
    """
    own: dict[str, Tensor] = {}
    for name, value in tensors(state).items():
        here = _renamed(name, names or {})
        if here in own:
            raise bad_value(f"load_state_dict: two names of the state become {here!r}; expected one, see names=")
        own[here] = value.T if _turned(here, value, transposed) else value
    return module.load_state_dict(own, strict)


def state_dict(module: Module, *, names: Names | None = None, transposed: Iterable[str] = ()) -> dict[str, Any]:
    """What ``load_state_dict`` of PyTorch's module takes: copies on the CPU by its names, tied weights under each.

    Arguments as of ``load_state_dict``. Needs PyTorch.
    """
    back = {here: there for there, here in (names or {}).items()}
    expect(len(back) == len(names or {}), "state_dict: names", names, "another name here for each module")
    found = {}
    for table in ("_parameters", "_buffers"):
        for name, value, _ in module._named_tensors(table, "", saved_only=True):
            value = value.detach().cpu()
            found[_renamed(name, back)] = _exported(value.T if _turned(name, value, transposed) else value)
    return found


def load_optimizer_state_dict(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Go on with the state of PyTorch's Adam, AdamW or SGD: moments, counts and options.

    Both have the same parameters in the same groups and order. Raises ValueError that says what does not fit, and for
    an option that is not here, such as ``amsgrad``.
    """
    if not isinstance(state, Mapping) or not state.keys() >= {"state", "param_groups"}:
        raise bad_value("load_optimizer_state_dict: expected the state_dict() of an optimizer of PyTorch's")
    meta = optimizer.state_dict()[1]  # our names and options, to be filled with theirs
    groups, kind = meta["param_groups"], meta["optimizer"]
    sizes = [[len(group["params"]) for group in some] for some in (groups, state["param_groups"])]
    if sizes[0] != sizes[1]:
        raise bad_value(f"load_optimizer_state_dict: groups of {sizes[1]} parameters, this {kind} has {sizes[0]}")
    arrays: dict[str, np.ndarray] = {}
    steps = {}
    for group, theirs in zip(groups, state["param_groups"], strict=True):
        for key in theirs.keys() - _WITHOUT_EFFECT:
            if key in group:
                group[key] = theirs[key]
            elif (theirs[key] or False) != (key == "decoupled_weight_decay" and kind == "AdamW"):
                raise bad_value(f"load_optimizer_state_dict: {key}={theirs[key]!r} is nothing that {kind} has")
        for name, number in zip(group["params"], theirs["params"], strict=True):
            if entry := state["state"].get(number):
                steps[name] = int(entry.get("step", 1))  # SGD's has none
                kept = {key: value for key, value in entry.items() if key != "step" and value is not None}
                arrays.update({f"{key}.{name}": value.numpy() for key, value in tensors(kept).items()})
    optimizer.load_state_dict(arrays, {**meta, "timestep": max(steps.values(), default=0), "steps": steps})


def optimizer_state_dict(optimizer: Optimizer) -> dict[str, Any]:
    """What ``load_state_dict`` of PyTorch's optimizer of the same name takes. Needs PyTorch."""
    arrays, meta = optimizer.state_dict()
    numbers = {name: i for i, name in enumerate(name for group in meta["param_groups"] for name in group["params"])}
    state: dict[int, dict[str, Any]] = {numbers[name]: {"step": float(step)} for name, step in meta["steps"].items()}
    for key, array in arrays.items():
        kind, _, name = key.partition(".")
        state[numbers[name]][kind] = _exported(tensor(array))
    groups = [{**group, "params": [numbers[name] for name in group["params"]]} for group in meta["param_groups"]]
    return {"state": state, "param_groups": groups}


def _exported(value: Tensor) -> Any:
    import torch

    return torch.from_dlpack(value.contiguous().clone())


def _renamed(name: str, names: Names) -> str:
    """The name with that of its longest module in ``names`` replaced; "" is the whole model."""
    known = [start for start in names if not start or f"{name}.".startswith(f"{start}.")]
    if not known:
        return name
    start = max(known, key=len)
    return ".".join(part for part in (names[start], name[len(start) :].lstrip(".")) if part)


def _turned(name: str, value: Tensor, transposed: Iterable[str]) -> bool:
    return value.ndim == 2 and any(fnmatch.fnmatchcase(name, pattern) for pattern in transposed)
