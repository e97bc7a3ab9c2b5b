"""Whether a saved optimizer state fits an optimizer: a report of everything that does not, not the first thing only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .optimizer import Optimizer


def mismatches(optimizer: Optimizer, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> list[str]:
    """One line for each reason why ``optimizer.load_state_dict(arrays, meta)`` cannot work; none if it can."""
    kind = type(optimizer).__name__
    for key, wanted in (("optimizer", str), ("timestep", int), ("steps", Mapping), ("param_groups", list)):
        if not isinstance(meta.get(key), wanted):
            return [f"{key} is {meta.get(key)!r:.100}, expected a {wanted.__name__}"]
    saved_groups = meta["param_groups"]
    if meta["optimizer"] != kind:
        return [f"it is of {meta['optimizer']!r}, this is {kind}"]
    if len(saved_groups) != len(optimizer.param_groups):
        return [f"it has {len(saved_groups)} parameter groups, this optimizer {len(optimizer.param_groups)}"]
    problems = [] if _is_count(meta["timestep"]) else [f"timestep is {meta['timestep']!r}, expected an integer >= 0"]
    for i, (group, saved) in enumerate(zip(optimizer.param_groups, saved_groups, strict=True)):
        problems += [f"group {i}: {problem}" for problem in _group_mismatches(optimizer, group, saved)]
    required: dict[str, tuple[str, ...]] = {}
    for saved in saved_groups:
        required.update(_required_arrays(optimizer, saved))
    return problems + _array_mismatches(optimizer, arrays, meta["steps"], required)


def _group_mismatches(optimizer: Optimizer, group: Mapping[str, Any], saved: Any) -> list[str]:
    if not isinstance(saved, Mapping) or not isinstance(saved.get("params"), list):
        return ["it is saved without a list of parameters"]
    here, there = [optimizer.name_of(p) for p in group["params"]], saved["params"]
    problems = [f"parameter {name!r} is not in the saved group" for name in here if name not in there]
    problems += [f"the saved parameter {name!r} is not in this group" for name in there if name not in here]
    options = {k: v for k, v in saved.items() if k != "params"}
    lacking = optimizer.defaults.keys() - options.keys()
    if lacking:
        return problems + [f"it is saved without {', '.join(sorted(lacking))}"]
    try:
        optimizer.checked(options)
    except ValueError as error:
        problems.append(str(error))
    return problems


def _required_arrays(optimizer: Optimizer, saved: Any) -> dict[str, tuple[str, ...]]:
    """The arrays that each parameter of a saved group must have, as far as its options can be understood."""
    try:
        kinds = optimizer.kinds_of(optimizer.checked({k: v for k, v in saved.items() if k != "params"}))
        return dict.fromkeys(saved["params"], kinds)
    except (AttributeError, KeyError, TypeError, ValueError):  # these are reported with the group
        return {}


def _array_mismatches(
    optimizer: Optimizer,
    arrays: Mapping[str, np.ndarray],
    steps: Mapping[str, Any],
    required: Mapping[str, tuple[str, ...]],
) -> list[str]:
    params = {optimizer.name_of(p): p for group in optimizer.param_groups for p in group["params"]}
    problems, expected = [], set()
    for name, step in steps.items():
        if not _is_count(step):
            problems.append(f"parameter {name!r}: its step is {step!r}, expected an integer >= 0")
        if name not in params:
            problems.append(f"there is a step count of {name!r}, which is no parameter here")
        for kind in (*optimizer.state_arrays, *optimizer.extra_arrays):
            key = f"{kind}.{name}"
            expected.add(key)
            array = arrays.get(key)
            if array is None:
                extra = optimizer.extra_kinds(params[name]) if name in params else ()
                if kind in required.get(name, ()) or kind in extra:
                    problems.append(f"array {key!r} is missing")
            elif name in params:
                dtype = optimizer.dtype_of(params[name], kind)
                if array.shape != params[name].shape or array.dtype != dtype:
                    problems.append(
                        f"array {key!r} has shape {array.shape} and dtype {array.dtype}, "
                        f"the parameter has {params[name].shape} and {dtype}"
                    )
    return problems + [f"array {key!r} belongs to no parameter" for key in arrays if key not in expected]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
