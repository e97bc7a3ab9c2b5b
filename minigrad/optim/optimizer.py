"""Optimizer: parameter groups, per-parameter state, and saving it; a subclass writes the arithmetic.

The surface is PyTorch's (``param_groups``, ``add_param_group``, per-group options) with one difference: gradients are
not stored on tensors, so ``step`` takes the GradStore that ``loss.backward()`` returned.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import capturing, hints
from ..device import Device
from ..errors import located
from ..grad_store import GradStore, check_grads
from ..tensor import Tensor
from . import saved_state

Arrays = dict[str, np.ndarray]
Named = Tensor | tuple[str, Tensor]


@dataclass
class ParamState:
    """What the optimizer knows of one parameter: its own count of updates, and its arrays (for AdamW, the moments)."""

    device: Device
    step: int = 0
    arrays: dict[str, Any] = field(default_factory=dict)
    version: int | None = None  # the parameter's after its last update, where a master belongs to it


class Update(NamedTuple):
    """One parameter that has a gradient in this step, checked."""

    group: int
    param: Tensor
    grad: Any  # raw array, contiguous


class Optimizer(ABC):
    """Base of the optimizers.

    ``params`` is an iterable of tensors, of pairs (name, tensor) as ``module.named_parameters()`` gives, or of groups;
    or a mapping to tensors. None leaves it to ``add_param_group`` to bring them, as trainers do. A group is a dict with
    ``params`` and any of the options in ``defaults``, which apply where a group is silent.

    Raises TypeError for something that is no parameter, ValueError if there are none in ``params``, for a tensor that
    does not require grad or was computed by an operation, for a parameter given twice, and for options that are unknown
    or out of range.
    """

    state_arrays: tuple[str, ...] = ()
    """Names of the arrays that a parameter's state may have, all of the parameter's shape and dtype."""
    extra_arrays: tuple[str, ...] = ()
    """Names of arrays that the states of some parameters have beside these."""
    capturable: bool = False
    """Whether ``step`` may be part of a CUDA graph: all that differs from step to step is then computed by the host
    before each launch, and read by the kernels from the device."""
    defaults: dict[str, Any]
    timestep: int

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor) or hasattr(params, "named_parameters") or not isinstance(params, Iterable | None):
            raise located(
                TypeError(
                    f"{type(self).__name__}: params is a {type(params).__name__}; pass a list of parameters: [p], or "
                    "model.parameters()"
                )
            )
        self.defaults = defaults
        self.defaults = self.checked(defaults)
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[int, ParamState] = {}
        self.timestep = 0
        """Calls of ``step`` so far, also of those that found no gradients."""
        self._names: dict[int, str] = {}
        self._valid: dict[int, dict[str, Any]] = {}  # of each group, the options that were last found in order
        if params is None:
            return
        entries = list(params.values() if isinstance(params, Mapping) else _ordered(params))
        for group in entries if entries and isinstance(entries[0], dict) else [{"params": entries}]:
            self.add_param_group(group)
        if not self._names:
            raise located(
                ValueError(
                    "optimizer got an empty parameter list; a generator gives its parameters only once, and modules in "
                    "a Python list are not registered: use nn.ModuleList"
                )
            )

    # ------------------------------------------------------------------ groups and options

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters: ``{"params": [...], "lr": 1e-4}``. On an error nothing is added."""
        if not isinstance(group, Mapping) or "params" not in group:
            raise located(TypeError(f"a parameter group is a dict with the key 'params', not {group!r}"))
        options = self.checked({**self.defaults, **{k: v for k, v in group.items() if k != "params"}})
        given = group["params"]
        members: list[Any] = [given] if isinstance(given, Tensor) else list(_ordered(given))
        params: list[Tensor] = []
        names: dict[int, str] = {}
        for i, member in enumerate(members):
            name, p = member if isinstance(member, tuple) and len(member) == 2 else (None, member)
            if name is not None and not isinstance(name, str):
                raise located(TypeError(f"parameter {i} has the name {name!r}; names are strings"))
            self._check_param(i, name, p)
            if p.id in self._names or p.id in names:
                raise located(
                    ValueError(f"{_label(name, i)} of shape {p.shape} is already in a group; each has one group")
                )
            names[p.id] = str(len(self._names) + i) if name is None else name
            params.append(p)
        taken = set(self._names.values())
        for name in names.values():
            if name in taken:
                raise located(
                    ValueError(f"two parameters have the name {name!r}; name all of them, differently, or none")
                )
            taken.add(name)
        self._names.update(names)
        self.param_groups.append({"params": params, **options})

    @staticmethod
    def _check_param(i: int, name: str | None, p: Any) -> None:
        if not isinstance(p, Tensor):
            raise located(
                TypeError(
                    f"{_label(name, i)} is a {type(p).__name__}; an optimizer takes tensors, or pairs (name, tensor)"
                )
            )
        if not p.is_leaf:
            raise located(
                ValueError(
                    f"{_label(name, i)} of shape {p.shape} was computed by an operation; only leaves are optimized"
                )
            )
        if not p.requires_grad:
            raise located(
                ValueError(f"{_label(name, i)} of shape {p.shape} does not require grad; call .requires_grad_() first")
            )

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of the options, with plain numbers. Raises ValueError if one is unknown or out of range."""
        for key in options:
            if key not in self.defaults:
                raise located(
                    ValueError(f"{type(self).__name__} has no option {key!r}; it has {', '.join(self.defaults)}")
                )
        return {**options, "lr": check_range(options["lr"], "lr", 0.0)}

    def kinds_of(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Those of ``state_arrays`` that the state of a parameter in a group with these options has."""
        return self.state_arrays

    def dtype_of(self, p: Tensor, kind: str) -> Any:
        """The dtype of an array of a parameter's state."""
        return p.data.dtype

    def extra_kinds(self, p: Tensor) -> tuple[str, ...]:
        """Those of ``extra_arrays`` that the state of this parameter has."""
        return ()

    @property
    def lr(self) -> float:
        """The learning rate of the first group; of groups to come, while there is none."""
        return float((self.param_groups[0] if self.param_groups else self.defaults)["lr"])

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of all groups, and of groups added later."""
        lr = check_range(lr, "lr", 0.0)
        for options in (self.defaults, *self.param_groups):
            options["lr"] = lr

    def name_of(self, p: Tensor) -> str:
        """The name that ``p`` was given with, or its position in order of addition; keys of the saved state use it."""
        return self._names[p.id]

    # ------------------------------------------------------------------ the step

    if not TYPE_CHECKING:  # to type checkers, an attribute that is not there is an error

        def __getattr__(self, name: str) -> Any:
            raise hints.missing("Optimizer", name, dir(self), type(self).__name__)

    def step(self, grads: GradStore | None = None) -> None:
        """Update, in place, every parameter that has a gradient in ``grads``; the others stay as they are.

        Raises ValueError or TypeError for a gradient or an option that does not fit, and ValueError for gradients of
        other tensors only, before anything is changed.
        """
        grads = check_grads("step", grads)
        if not grads.is_empty() and not any(p in grads for group in self.param_groups for p in group["params"]):
            count = sum(len(group["params"]) for group in self.param_groups)
            raise located(
                ValueError(
                    f"none of the {len(grads)} gradients belongs to any of the optimizer's {count} parameters, "
                    "so nothing would be trained; was the optimizer made with the parameters of another model?"
                )
            )
        graph = capturing.current()
        if graph is not None and not self.capturable:
            raise located(
                RuntimeError(
                    f"{type(self).__name__}.step during capture: each launch would use its scalars of now; call "
                    "step after the launch, with the gradients of the graph, or use AdamW"
                )
            )
        self.update(grads)
        if graph is None:
            self.timestep += 1
        else:
            graph.count(self._count)

    def _count(self, steps: int) -> None:
        self.timestep += steps

    @abstractmethod
    def update(self, grads: GradStore) -> None:
        """``step`` without counting it: for those who make one step in several parts, such as one bucket at a time."""

    def reset(self) -> None:
        """Forget the moments and all counts; groups and options stay."""
        self.state.clear()
        self.timestep = 0

    def _check_options(self) -> None:
        """Raise ValueError for a group's option that is out of range; those that were last found in order are known."""
        for index, group in enumerate(self.param_groups):
            options = options_of(group)
            if options != self._valid.get(index):
                self._valid[index] = self.checked(options)

    def _collect(self, grads: GradStore) -> list[Update]:
        """The parameters that have a gradient, in order of the groups, with everything checked."""
        check_grads("update", grads)
        self._check_options()
        updates = []
        for index, group in enumerate(self.param_groups):
            for p in group["params"]:
                grad = grads.get(p)
                if grad is None:
                    continue
                g, x = grad.data, p.data
                if g.shape != x.shape:
                    raise located(
                        ValueError(f"parameter {self._names[p.id]} has shape {p.shape}, its gradient {grad.shape}")
                    )
                if g.dtype != x.dtype:
                    raise located(
                        TypeError(f"parameter {self._names[p.id]} has dtype {p.dtype}, its gradient {grad.dtype}")
                    )
                if grad.device is not p.device:
                    raise located(
                        ValueError(f"parameter {self._names[p.id]} is on {p.device}, its gradient on {grad.device}")
                    )
                updates.append(Update(index, p, g if g.flags.c_contiguous else p.device.kernels.contiguous(g)))
        return updates

    def _check_updatable(self, p: Tensor) -> None:
        """Raise TypeError or ValueError unless ``p`` can be updated in place."""
        if not p.is_floating_point():
            raise located(
                TypeError(
                    f"parameter {self.name_of(p)} is {p.dtype}; {type(self).__name__} updates floating parameters"
                )
            )
        if not p.data.flags.c_contiguous:
            raise located(
                ValueError(
                    f"parameter {self.name_of(p)} of shape {p.shape} is not contiguous, so it cannot be updated in "
                    "place; make it from a .contiguous() tensor"
                )
            )

    def _make_states(self, params: Iterable[Tensor], kinds: tuple[str, ...] | None = None) -> None:
        """Give each parameter those of the arrays (default: all of ``state_arrays``) that its state lacks, of zeros:
        for each kind a single flat array per device and dtype, of which every parameter's is a view that begins at a
        multiple of four elements, where a GPU's widest access can.
        """
        kinds = self.state_arrays if kinds is None else kinds
        new: dict[tuple[Device, Any, tuple[str, ...]], list[Tensor]] = {}
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
                raise located(
                    ValueError(
                        f"parameter {self._names[p.id]} now has shape {p.shape}, its {name} {tuple(array.shape)}; "
                        "after a change of shape make a new optimizer, or reset() this one"
                    )
                )
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

    # ------------------------------------------------------------------ saving and resuming

    def state_dict(self) -> tuple[Arrays, dict[str, Any]]:
        """All that an exact resume needs, copied: arrays for safetensors, and the rest as JSON.

        Arrays are named ``exp_avg.<parameter>``: the parameter's name, or its position if it was given without one.
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
                        arrays[f"{kind}.{name}"] = np.array(state.device.kernels.to_host(array))
        meta = {"optimizer": type(self).__name__, "timestep": self.timestep, "steps": steps, "param_groups": groups}
        return arrays, meta

    def load_state_dict(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned, options of groups included: ``optimizer.load_state_dict(*saved)``.

        Raises ValueError, naming everything that does not match, before anything is changed.
        """
        problems = saved_state.mismatches(self, arrays, meta)
        if problems:
            shown = problems[:20] + ([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])
            raise located(ValueError("the saved optimizer state does not fit:\n  " + "\n  ".join(shown)))
        params = {self._names[p.id]: p for group in self.param_groups for p in group["params"]}
        self.reset()
        self.timestep = meta["timestep"]
        for group, saved in zip(self.param_groups, meta["param_groups"], strict=True):
            group.update(self.checked(options_of(saved)))
        for name in meta["steps"]:
            self.state[params[name]._id] = ParamState(params[name].device)
        for kind in (*self.state_arrays, *self.extra_arrays):
            self._make_states([params[name] for name in meta["steps"] if f"{kind}.{name}" in arrays], (kind,))
        for name, step in meta["steps"].items():
            state = self.state[params[name]._id]
            state.step = step
            kernels = state.device.kernels
            for kind, array in state.arrays.items():
                kernels.elementwise.assign(array, kernels.from_host(np.asarray(arrays[f"{kind}.{name}"])))

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}("]
        for i, group in enumerate(self.param_groups):
            options = ", ".join(f"{k}={v}" for k, v in group.items() if k != "params")
            lines.append(f"  group {i}: {len(group['params'])} parameters, {options}")
        return "\n".join([*lines, ")"])


def decay_groups(params: Iterable[Named], weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: weight decay for matrices (ndim >= 2, embeddings too), none for biases and norm weights.

    ``params`` are tensors or pairs (name, tensor), as ``module.named_parameters()`` gives; those that do not require
    grad are left out.
    """
    entries = [(entry[1] if isinstance(entry, tuple) else entry, entry) for entry in params]
    trained = [(p.ndim >= 2, entry) for p, entry in entries if p.requires_grad]
    return [
        {"params": [entry for decays, entry in trained if decays], "weight_decay": weight_decay},
        {"params": [entry for decays, entry in trained if not decays], "weight_decay": 0.0},
    ]


def check_range(value: Any, name: str, low: float, below: float = math.inf) -> float:
    """``value`` as a float. Raises ValueError unless it is a number with low <= value < below."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low <= value < below:
        wanted = "a finite number" if below == math.inf else f"a number below {below:g} and"
        raise located(ValueError(f"{name} is {value!r}, expected {wanted} >= {low:g}"))
    return float(value)


def check_betas(betas: Any) -> tuple[float, float]:
    """``betas`` as two floats. Raises ValueError unless they are two numbers with 0 <= beta < 1."""
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise located(ValueError(f"betas is {betas!r}, expected two numbers, such as (0.9, 0.999)"))
    return check_range(betas[0], "betas[0]", 0.0, 1.0), check_range(betas[1], "betas[1]", 0.0, 1.0)


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group without its parameters."""
    options = dict(group)
    options.pop("params", None)
    return options


def _label(name: str | None, i: int) -> str:
    return f"parameter {i}" if name is None else f"parameter {name!r}"


def _ordered(params: Any) -> Any:
    if isinstance(params, set | frozenset):
        raise located(TypeError("params is a set, whose order changes from run to run; pass a list"))
    return params
