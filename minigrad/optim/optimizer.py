"""Optimizer: parameter groups, per-parameter state, and saving it; a subclass writes the arithmetic.

The surface is PyTorch's (``param_groups``, ``add_param_group``, per-group options) with one difference: gradients are
not stored on tensors, so ``step`` takes the GradStore that ``loss.backward()`` returned.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import hints
from ..errors import bad_state, bad_type, bad_value, check_float
from ..grad_store import GradStore, check_grads
from ..modes import current_graph
from ..tensor import Tensor
from .optimizer_state import OptimizerState, options_of

Named = Tensor | tuple[str, Tensor]


class Update(NamedTuple):
    """One parameter that has a gradient in this step, checked."""

    group: int
    param: Tensor
    grad: Any  # raw array, contiguous


class Optimizer(OptimizerState, ABC):
    """Base of the optimizers.

    ``params`` is an iterable of tensors, of pairs (name, tensor) as ``module.named_parameters()`` gives, or of groups;
    or a mapping to tensors. None leaves it to ``add_param_group`` to bring them, as trainers do. A group is a dict with
    ``params`` and any of the options in ``defaults``, which apply where a group is silent.

    A frozen parameter, which does not require grad, gets no gradient and stays as it is.

    Raises TypeError for something that is no parameter. Raises ValueError if there are none in ``params``, for a tensor
    that was computed by an operation, and for a parameter given twice. Options that are unknown or out of range raise
    it, too.
    """

    capturable: bool = False
    """Whether ``step`` may be part of a graph: all that differs from step to step is then computed by the host
    before each launch, and read by the kernels from the device."""

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor) or hasattr(params, "named_parameters") or not isinstance(params, Iterable | None):
            raise bad_type(f"{type(self).__name__} of a {type(params).__name__}; pass [p], or model.parameters()")
        super().__init__(defaults)
        if params is None:
            return
        entries = list(params.values() if isinstance(params, Mapping) else _ordered(params))
        for group in entries if entries and isinstance(entries[0], dict) else [{"params": entries}]:
            self.add_param_group(group)
        if not self._names:
            reason = "a generator gives its parameters only once, and modules in a Python list are not registered"
            raise bad_value(f"optimizer got an empty parameter list; {reason}: use nn.ModuleList")

    # ------------------------------------------------------------------ groups and options

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters: ``{"params": [...], "lr": 1e-4}``. On an error nothing is added."""
        if not isinstance(group, Mapping) or "params" not in group:
            raise bad_type(f"a parameter group is a dict with the key 'params', not {group!r}")
        options = self.checked({**self.defaults, **options_of(group)})
        given = group["params"]
        members: list[Any] = [given] if isinstance(given, Tensor) else list(_ordered(given))
        params: list[Tensor] = []
        names: dict[int, str] = {}
        for i, member in enumerate(members):
            name, p = member if isinstance(member, tuple) and len(member) == 2 else (None, member)
            if name is not None and not isinstance(name, str):
                raise bad_type(f"parameter {i} has the name {name!r}; names are strings")
            self._check_param(i, name, p)
            if p.id in self._names or p.id in names:
                raise bad_value(f"{_label(name, i)} of shape {p.shape} is already in a group; each has one group")
            names[p.id] = str(len(self._names) + i) if name is None else name
            params.append(p)
        taken = set(self._names.values())
        for name in names.values():
            if name in taken:
                raise bad_value(f"two parameters have the name {name!r}; name all of them, differently, or none")
            taken.add(name)
        self._names.update(names)
        self.param_groups.append({"params": params, **options})

    def _check_param(self, i: int, name: str | None, p: Any) -> None:
        label = _label(name, i)
        if not isinstance(p, Tensor):
            raise bad_type(f"{label} is a {type(p).__name__}; an optimizer takes tensors, or pairs (name, tensor)")
        if not p.is_leaf:
            raise bad_value(f"{label} of shape {p.shape} was computed by an operation; only leaves are optimized")

    def kinds_of(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Those of ``state_arrays`` that the state of a parameter in a group with these options has."""
        return self.state_arrays

    @property
    def lr(self) -> float:
        """The learning rate of the first group; of groups to come, while there is none. To set it is ``set_lr``."""
        return float((self.param_groups[0] if self.param_groups else self.defaults)["lr"])

    @lr.setter
    def lr(self, lr: float) -> None:
        self.set_lr(lr)

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of all groups, and of groups added later."""
        lr = check_float("lr", lr)
        for options in (self.defaults, *self.param_groups):
            options["lr"] = lr

    # ------------------------------------------------------------------ the step

    if not TYPE_CHECKING:  # to type checkers, an attribute that is not there is an error

        def __getattr__(self, name: str) -> Any:
            raise hints.missing("Optimizer", name, dir(self), type(self).__name__)

    def step(self, grads: GradStore | None = None) -> None:
        """Update, in place, every parameter that has a gradient in ``grads``; the others stay as they are.

        Raises ValueError or TypeError for a gradient or an option that does not fit. Raises ValueError for gradients of
        other tensors only. Either is raised before anything is changed.
        """
        grads = check_grads("step", grads)
        if not grads.is_empty() and not any(p in grads for group in self.param_groups for p in group["params"]):
            known = f"any of the optimizer's {len(self._names)} parameters, so nothing would be trained"
            asked = "was the optimizer made with the parameters of another model?"
            raise bad_value(f"none of the {len(grads)} gradients belongs to {known}; {asked}")
        graph = current_graph()
        if graph is not None and not self.capturable:
            remedy = "call step after the launch, with the gradients of the graph, or use AdamW"
            why = "each launch would use its scalars of now"
            raise bad_state(f"{type(self).__name__}.step during capture: {why}; {remedy}")
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

    def reads(self) -> dict[int, list[Any]]:
        """By the number of a parameter, what updates since the last call have read of it and its state.

        That is pairs of a checksum and how many updates there were. Nothing where nobody looks."""
        return {}

    def _check_options(self) -> None:
        """Raise ValueError for a group's option that is out of range; those that were last found in order are known."""
        for index, group in enumerate(self.param_groups):
            options = group.copy()
            del options["params"]
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
                    raise bad_value(f"parameter {self._names[p.id]} has shape {p.shape}, its gradient {grad.shape}")
                if g.dtype != x.dtype:
                    raise bad_type(f"parameter {self._names[p.id]} has dtype {p.dtype}, its gradient {grad.dtype}")
                if grad.device is not p.device:
                    raise bad_value(f"parameter {self._names[p.id]} is on {p.device}, its gradient on {grad.device}")
                updates.append(Update(index, p, g if g.flags.c_contiguous else p.device.kernels.contiguous(g)))
        return updates

    def _check_updatable(self, p: Tensor) -> None:
        """Raise TypeError or ValueError unless ``p`` can be updated in place."""
        if not p.is_floating_point():
            raise bad_type(f"parameter {self.name_of(p)} is {p.dtype}; {type(self).__name__} updates floating ones")
        if not p.data.flags.c_contiguous:
            label = f"parameter {self.name_of(p)} of shape {p.shape}"
            remedy = "it cannot be updated in place; make it from a .contiguous() tensor"
            raise bad_value(f"{label} is not contiguous, so {remedy}")

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}("]
        for i, group in enumerate(self.param_groups):
            options = ", ".join(f"{k}={v}" for k, v in options_of(group).items())
            lines.append(f"  group {i}: {len(group['params'])} parameters, {options}")
        return "\n".join([*lines, ")"])


def decay_groups(params: Iterable[Named], weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: weight decay for matrices (ndim >= 2, embeddings too), none for biases and norm weights.

    ``params`` are tensors or pairs (name, tensor), as ``module.named_parameters()`` gives; those that do not require
    grad are left out.
    """
    entries = [(entry[1] if isinstance(entry, tuple) else entry, entry) for entry in params]
    trained = [(p.ndim >= 2, entry) for p, entry in entries if p.requires_grad]
    matrices, others = ([entry for decays, entry in trained if decays == wanted] for wanted in (True, False))
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def check_share(name: str, value: Any) -> float:
    """``value`` as a float. Raises ValueError unless it is a number with 0 <= value < 1."""
    return check_float(name, value, below=1.0)


def check_betas(name: str, betas: Any) -> tuple[float, float]:
    """``betas`` as two floats. Raises ValueError unless they are two numbers with 0 <= beta < 1."""
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise bad_value(f"{name} is {betas!r}, expected two numbers, such as (0.9, 0.999)")
    return check_share(f"{name}[0]", betas[0]), check_share(f"{name}[1]", betas[1])


def _label(name: str | None, i: int) -> str:
    return f"parameter {i}" if name is None else f"parameter {name!r}"


def _ordered(params: Any) -> Any:
    if isinstance(params, set | frozenset):
        raise bad_type("params is a set, whose order changes from run to run; pass a list")
    return params
