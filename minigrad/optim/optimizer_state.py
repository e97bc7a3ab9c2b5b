"""What an optimizer remembers: parameter groups, each parameter's state, and both saved and resumed."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ..device import Device
from ..dtypes import float32, is_half
from ..errors import bad_value, check_float, expect
from ..tensor import Tensor

Arrays = dict[str, np.ndarray]
Kinds: TypeAlias = tuple[str, ...]  # names of arrays
Self = TypeVar("Self", bound="OptimizerState")
Checks: TypeAlias = Mapping[str, Callable[[str, Any], Any]]


@dataclass
class ParamState:
    """What the optimizer knows of one parameter: its own count of updates, and its arrays (for AdamW, the moments)."""

    device: Device
    step: int = 0
    arrays: dict[str, Any] = field(default_factory=dict)
    version: int | None = None  # the parameter's after its last update, where a master belongs to it


class SavedState(NamedTuple):
    """``arrays, meta = optimizer.state_dict()``. An entry of ``meta`` has its name: ``state["param_groups"]``."""

    arrays: Arrays
    meta: dict[str, Any]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            expect(key in self.meta, "the key of a state", key, f"one of {', '.join(self.meta)}; moments: .arrays")
        return self.meta[key] if isinstance(key, str) else tuple.__getitem__(self, key)


class OptimizerState:
    """The part of an Optimizer that is not its arithmetic. A report of what does not fit names everything at once."""

    state_arrays: Kinds = ()
    """Names of the arrays that a parameter's state may have, all of the parameter's shape and dtype."""
    extra_arrays: Kinds = ()
    """Names of arrays that the states of some parameters have beside these."""

    elementwise: bool = True
    """Whether each element of a parameter is updated by its own gradient and state alone, so that a part of a parameter
    can be updated by itself."""

    checks: ClassVar[Checks] = {"lr": check_float}
    """By the name of an option, what gives its value as a plain one, or raises ValueError."""

    def __init__(self, defaults: dict[str, Any]) -> None:
        self.defaults: dict[str, Any] = defaults
        """The options of groups that name no others."""
        self.defaults = self.checked(defaults)
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[int, ParamState] = {}
        self.keeps_on: Device | None = None
        """Where a loaded state is until the parameter's next update; None: on the parameter's device."""
        self.timestep: int = 0
        """Calls of ``step`` so far, also of those that found no gradients."""
        self._names: dict[int, str] = {}
        self._valid: dict[int, dict[str, Any]] = {}  # of each group, the options that were last found in order

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of the options, with plain numbers. Raises ValueError if one is unknown or out of range."""
        for key in options:
            if key not in self.defaults:
                raise bad_value(f"{type(self).__name__} has no option {key!r}; it has {', '.join(self.defaults)}")
        return {name: self.checks[name](name, x) if name in self.checks else x for name, x in options.items()}

    def kinds_of(self, options: Mapping[str, Any]) -> Kinds:
        """Those of ``state_arrays`` that the state of a parameter in a group with these options has."""
        raise NotImplementedError

    def without_params(self: Self) -> Self:
        """One of the same kind and options that has no parameters and no state yet."""
        other = copy.copy(self)
        OptimizerState.__init__(other, dict(self.defaults))
        other.reset()
        return other

    def name_of(self, p: Tensor) -> str:
        """The name that ``p`` was given with, or its position in order of addition; keys of the saved state use it."""
        return self._names[p.id]

    def dtype_of(self, p: Tensor, kind: str) -> Any:
        """The dtype of an array of a parameter's state: float32 beside a master of a half dtype."""
        return float32 if self.extra_arrays and is_half(p.data.dtype) else p.data.dtype

    def extra_kinds(self, p: Tensor) -> Kinds:
        """Those of ``extra_arrays`` that the state of this parameter has."""
        return self.extra_arrays if is_half(p.data.dtype) else ()

    def reset(self) -> None:
        """Forget the moments and all counts; groups and options stay."""
        self.state.clear()
        self.timestep = 0

    def _make_states(self, params: Iterable[Tensor], kinds: Kinds | None = None) -> None:
        """Give each parameter those of the arrays (default: all of ``state_arrays``) that its state lacks, of zeros.

        For each kind there is a single flat array per device and dtype, of which every parameter's is a view. A view
        begins at a multiple of four elements, where a GPU's widest access can.
        """
        kinds = self.state_arrays if kinds is None else kinds
        new: dict[tuple[Device, Any, Kinds], list[Tensor]] = {}
        for p in params:
            state = self.state.get(p._id)
            lacking = kinds if state is None else tuple([kind for kind in kinds if kind not in state.arrays])
            if state is None or lacking:
                device = p.device if state is None else state.device  # where the others are until the next update
                new.setdefault((device, self.dtype_of(p, lacking[0] if lacking else ""), lacking), []).append(p)
        for (device, dtype, lacking), members in new.items():
            places = [-(-p.numel() // 4) * 4 for p in members]
            flats = {kind: device.kernels.zeros((sum(places),), dtype) for kind in lacking}
            start = 0
            for p, place in zip(members, places, strict=True):
                views = {name: flat[start : start + p.numel()].reshape(p.shape) for name, flat in flats.items()}
                self.state.setdefault(p._id, ParamState(device)).arrays.update(views)
                start += place

    def _state_of(self, p: Tensor) -> ParamState:
        """The state of ``p``, converted if ``p`` has gone to another dtype or device since."""
        state = self.state[p._id]
        kernels, x = p.device.kernels, p.data
        for name, array in state.arrays.items():
            if array.shape != x.shape:
                remedy = "after a change of shape make a new optimizer, or reset() this one"
                shapes = f"has shape {p.shape}, its {name} {tuple(array.shape)}"
                raise bad_value(f"parameter {self._names[p.id]} now {shapes}; {remedy}")
        arrays = state.arrays
        if state.device is not p.device:
            host = state.device.kernels.to_host
            arrays = {name: kernels.from_host(host(array)) for name, array in arrays.items()}
        wanted = {name: self.dtype_of(p, name) for name in arrays}
        if any(array.dtype != wanted[name] for name, array in arrays.items()):
            arrays = {name: kernels.elementwise.cast(array, wanted[name]) for name, array in arrays.items()}
        if arrays is not state.arrays:
            state = ParamState(p.device, state.step, arrays, state.version)
        self.state[p._id] = state
        return state

    def state_dict(self, part: Callable[[Any], Any] | None = None) -> SavedState:
        """All that an exact resume needs: arrays for safetensors, and the rest as JSON.

        Arrays are named ``exp_avg.<parameter>``: the parameter's name, or its position if it was given without one.
        ``part(array)`` is what of a raw array is given, and on a CPU not copied; None: a copy of all.
        """
        arrays: Arrays = {}
        steps: dict[str, int] = {}
        groups = []
        for group in self.param_groups:
            # An option that was changed since the last update may ask for arrays that the states do not have yet.
            for p in group["params"]:
                if p.id in self.state:
                    self._make_states([p], self.kinds_of(group))
            names = [self._names[p.id] for p in group["params"]]
            groups.append({**self.checked(options_of(group)), "params": names})
            for name, p in zip(names, group["params"], strict=True):
                state = self.state.get(p.id)
                if state is not None:
                    steps[name] = state.step
                    for kind, array in state.arrays.items():
                        to_host = state.device.kernels.to_host
                        arrays[f"{kind}.{name}"] = np.array(to_host(array)) if part is None else to_host(part(array))
        meta = {"optimizer": type(self).__name__, "timestep": self.timestep, "steps": steps, "param_groups": groups}
        return SavedState(arrays, meta)

    def load_state_dict(self, arrays: Any, meta: Mapping[str, Any] | None = None) -> None:
        """Take over what ``state_dict`` returned, as two arguments or as one, options of groups included.

        Raises ValueError, naming everything that does not match, before anything is changed.
        """
        if meta is None:
            expect(isinstance(arrays, tuple | list) and len(arrays) == 2, "state", arrays, "what state_dict() returned")
            arrays, meta = arrays
        problems = _mismatches(self, arrays, meta)
        if problems:
            shown = problems[:20] + ([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])
            raise bad_value("the saved optimizer state does not fit:\n  " + "\n  ".join(shown))
        params = {self._names[p.id]: p for group in self.param_groups for p in group["params"]}
        self.reset()
        self.timestep = meta["timestep"]
        for group, saved in zip(self.param_groups, meta["param_groups"], strict=True):
            group.update(self.checked(options_of(saved)))
        for name, step in meta["steps"].items():
            self.state[params[name]._id] = ParamState(self.keeps_on or params[name].device, step)
        for kind in (*self.state_arrays, *self.extra_arrays):
            self._make_states([params[name] for name in meta["steps"] if f"{kind}.{name}" in arrays], (kind,))
        for name in meta["steps"]:
            state = self.state[params[name]._id]
            kernels = state.device.kernels
            for kind, array in state.arrays.items():
                kernels.elementwise.assign(array, kernels.from_host(np.asarray(arrays[f"{kind}.{name}"])))


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group without its parameters."""
    return {key: value for key, value in group.items() if key != "params"}


def _mismatches(optimizer: OptimizerState, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> list[str]:
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
    required: dict[str, Kinds] = {}
    for i, (group, saved) in enumerate(zip(optimizer.param_groups, saved_groups, strict=True)):
        problems += [f"group {i}: {problem}" for problem in _group_mismatches(optimizer, group, saved, required)]
    return problems + _array_mismatches(optimizer, arrays, meta["steps"], required)


def _group_mismatches(
    optimizer: OptimizerState, group: Mapping[str, Any], saved: Any, required: dict[str, Kinds]
) -> list[str]:
    """What does not fit; the arrays that each parameter of the saved group must have are added to ``required``."""
    if not isinstance(saved, Mapping) or not isinstance(saved.get("params"), list):
        return ["it is saved without a list of parameters"]
    here, there = [optimizer.name_of(p) for p in group["params"]], saved["params"]
    problems = [f"parameter {name!r} is not in the saved group" for name in here if name not in there]
    problems += [f"the saved parameter {name!r} is not in this group" for name in there if name not in here]
    options = options_of(saved)
    lacking = optimizer.defaults.keys() - options.keys()
    if lacking:
        return problems + [f"it is saved without {', '.join(sorted(lacking))}"]
    try:
        kinds = optimizer.kinds_of(optimizer.checked(options))
        required.update({name: kinds for name in there if isinstance(name, str)})
    except ValueError as error:
        problems.append(str(error))
    return problems


def _array_mismatches(
    optimizer: OptimizerState, arrays: Mapping[str, np.ndarray], steps: Mapping[str, Any], required: Mapping[str, Kinds]
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
                    has = f"has shape {array.shape} and dtype {array.dtype}"
                    problems.append(f"array {key!r} {has}, the parameter has {params[name].shape} and {dtype}")
    return problems + [f"array {key!r} belongs to no parameter" for key in arrays if key not in expected]


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
