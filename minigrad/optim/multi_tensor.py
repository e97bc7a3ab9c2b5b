"""MultiTensorOptimizer: what the optimizers have in common that update all parameters of one dtype in one launch."""

import contextlib
import functools
import itertools
import operator
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from ..autograd import bump
from ..cuda import cuda_graph
from ..dtypes import float32, is_half
from ..errors import bad_value
from ..grad_store import GradStore, check_grads
from ..modes import current_graph
from ..tensor import Tensor
from .optimizer import Named, Optimizer, Update
from .optimizer_state import ParamState

C = TypeVar("C")
O = TypeVar("O", bound=Optimizer)


@dataclass(eq=False)
class UpdateBatch:
    """Parameters that one launch updates: those with a gradient that share device, dtype and kinds of state arrays.

    Kept for the next steps, as long as they find the same memory and states.
    """

    kinds: tuple[str, ...]
    groups: list[int]
    params: list[Tensor]
    arrays: list[Any]  # the memory of params
    states: list[ParamState]
    table: Any  # the kernel's, of the addresses of all these; None for half parameters without masters

    def __post_init__(self) -> None:
        self.ids: list[int] = [p._id for p in self.params]
        self.index: np.ndarray = np.empty(0, np.int64)  # of each parameter, the row of scalars
        self.shapes: list[tuple[int, ...]] = [array.shape for array in self.arrays]

    def is_current(self, states: dict[int, ParamState]) -> bool:
        """Whether parameters and states are still those of the table, and masters those of their parameters."""
        return (
            all(map(operator.is_, [p.data for p in self.params], self.arrays))
            and all(map(operator.is_, map(states.get, self.ids), self.states))
            and ("master" not in self.kinds or all(map(_is_followed, self.params, self.states)))
        )

    def gradients(self, grads: GradStore) -> list[Any] | None:
        """The raw arrays of the gradients; None if one does not fit its parameter, or is not contiguous."""
        device, dtype = self.params[0].device, self.arrays[0].dtype
        arrays = [grad.data for grad in grads.select(self.ids).values() if grad.device is device]
        ready = [a.dtype == dtype and a.flags.c_contiguous for a in arrays]
        return arrays if [a.shape for a in arrays] == self.shapes and False not in ready else None


def _is_followed(p: Tensor, state: ParamState) -> bool:
    """Whether the parameter was changed by the optimizer last, which knows its master."""
    return state.version == p._version.count


class MultiTensorOptimizer(Optimizer):
    """An optimizer whose arithmetic is a kernel family with a table of addresses: a subclass names the family and
    gives a parameter's scalars.

    float16 and bfloat16 parameters have a state of the same dtype. They are updated by way of float32 copies and
    rounded once in a step, as by PyTorch's fused optimizers. An update below half a unit in the last place is lost (for
    bfloat16, below 1/512 of the weight). Where that matters, keep the weights in float32, or use an optimizer with
    ``master_weights``. It keeps a float32 copy of each half parameter, its ``master``, with float32 states. A step
    updates these and rounds the master to the parameter, in one launch.
    """

    capturable = True
    _family: ClassVar[str]
    """The optimizer's module in a kernel package: it has ``Table`` and ``step``."""

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self.master_weights: bool = bool(self.extra_arrays)
        self._batches: dict[Any, list[UpdateBatch]] = {}
        super().__init__(params, defaults)

    @abstractmethod
    def _row(self, group: dict[str, Any], t: int) -> tuple[float, ...]:
        """The kernel's scalars for the t-th update of a parameter of that group, in double precision."""

    def update(self, grads: GradStore) -> None:
        """``step`` without counting it: for those who make one step in several parts, such as one bucket at a time."""
        check_grads("update", grads)
        graph = current_graph()
        for batch, arrays in self._batches_for(grads, graph):
            kernels = batch.params[0].device.kernels
            family = getattr(kernels, self._family)
            scalars = self._scalars(batch) if graph is None else self._captured(graph, batch)
            if batch.table is None:
                _step_in_float32(kernels, family, batch, arrays, scalars, graph)
            else:
                family.step(batch.table, arrays, scalars)
            if graph is None:
                _count(batch, 1)

    def _batches_for(self, grads: GradStore, graph: cuda_graph.Graph | None) -> list[tuple[UpdateBatch, list[Any]]]:
        """The parameters that have gradients, and these as raw arrays, with everything checked."""
        self._check_options()
        groups = [(self.kinds_of(group), *map(id, group["params"])) for group in self.param_groups]
        key = (*groups, *grads.numbers())
        batches = self._batches.get(key)
        if batches is None or not all(batch.is_current(self.state) for batch in batches):
            batches = self._divided(self._collect(grads), graph)
            if len(self._batches) >= 64:  # the set of parameters that have gradients keeps changing
                self._batches.clear()
            self._batches[key] = batches
        ready = [(batch, arrays) for batch in batches if (arrays := batch.gradients(grads)) is not None]
        if len(ready) == len(batches):
            return ready
        # This raises for what does not fit, and makes contiguous what is not.
        found = {update.param._id: update.grad for update in self._collect(grads)}
        return [(batch, [found[number] for number in batch.ids]) for batch in batches]

    def _divided(self, updates: list[Update], graph: cuda_graph.Graph | None) -> list[UpdateBatch]:
        """Batches of these parameters."""
        divided: dict[Any, list[Update]] = {}
        for update in updates:
            p = update.param
            kinds = self.kinds_of(self.param_groups[update.group]) + self.extra_kinds(p)
            divided.setdefault((p.device, p.data.dtype, kinds), []).append(update)
        with contextlib.nullcontext() if graph is None else graph.paused():
            return [self._prepare(part, kinds) for (_, _, kinds), part in divided.items()]

    def _captured(self, graph: cuda_graph.Graph, batch: UpdateBatch) -> np.ndarray:
        """The scalars of each launch of a graph, whose launches count as updates."""
        graph.count(functools.partial(_count, batch))
        graph.valid_while(lambda: batch.is_current(self.state))
        return graph.varying(functools.partial(self._scalars, batch))

    def _prepare(self, updates: list[Update], kinds: tuple[str, ...]) -> UpdateBatch:
        """A batch of these parameters."""
        params = [update.param for update in updates]
        if "master" in kinds:
            self._keep_masters(params)
        for p in params:
            self._check_updatable(p)
        self._make_states(params, kinds)
        states = [self._state_of(p) for p in params]
        arrays = [p.data for p in params]
        family = getattr(params[0].device.kernels, self._family)
        if "master" in kinds:
            columns = [[state.arrays[kind] for state in states] for kind in ("master", *self.state_arrays)]
            table = family.Table(*columns, weights=arrays)
        elif is_half(arrays[0].dtype):
            read_only = [i for i, array in enumerate(arrays) if not array.flags.writeable]
            if read_only:
                raise bad_value(f"array {read_only[0]} is read-only, so it cannot be updated in place")
            table = None
        else:
            table = family.Table(arrays, *([state.arrays[kind] for state in states] for kind in kinds))
        return UpdateBatch(kinds, [update.group for update in updates], params, arrays, states, table)

    def _keep_masters(self, params: list[Tensor]) -> None:
        """Make the masters of new parameters, and make those anew whose parameter somebody else has changed."""
        new = {p._id for p in params if p._id not in self.state or "master" not in self.state[p._id].arrays}
        self._make_states([p for p in params if p._id in new], ("master",))
        for p in params:
            made = p._id in new
            if made or not _is_followed(p, self.state[p._id]):
                state = self._state_of(p)
                k, master = p.device.kernels, state.arrays["master"]
                rounded = k.elementwise.cast(master, p.data.dtype)
                if made or k.to_host(rounded).tobytes() != k.to_host(p.data).tobytes():
                    k.elementwise.assign(master, p.data)
                state.version = p._version.count

    def _scalars(self, batch: UpdateBatch) -> np.ndarray:
        """float64 (number of parameters, number of scalars): each parameter's scalars for its coming update."""
        # Few rows differ: one for each group, unless parameters were frozen for a while.
        wanted = [*zip(batch.groups, [state.step for state in batch.states])]
        rows = {row: i for i, row in enumerate(dict.fromkeys(wanted))}
        index = [*map(rows.__getitem__, wanted)]
        if index != batch.index.tolist():
            batch.index = np.array(index)
        return np.array([self._row(self.param_groups[group], t + 1) for group, t in rows]).take(batch.index, axis=0)

    def reads(self) -> dict[int, list[Any]]:
        """As the base's: rows of the tables' ``read``."""
        found: dict[int, list[Any]] = {}
        for batch in itertools.chain(*self._batches.values()):
            if (read := getattr(batch.table, "read", None)) is not None:
                for i, number in enumerate(batch.ids):
                    found.setdefault(number, []).extend(read[batch.table.runs[:, 0] == i])
                read.fill(0)
        return found

    def reset(self) -> None:
        """Forget the moments and all counts; groups and options stay."""
        super().reset()
        self._batches = {}


class Configured(MultiTensorOptimizer, Generic[C]):
    """An optimizer with a record of its options, as boostr has it: ``betas`` are ``beta1`` and ``beta2`` there."""

    config_type: ClassVar[type]

    @classmethod
    def from_config(cls: type[O], config: C, params: Iterable[Named] | None = None) -> O:
        """An optimizer with these options."""
        options = dict(vars(config))
        if "beta1" in options:
            options["betas"] = options.pop("beta1"), options.pop("beta2")
        return cls(params, **options)

    @property
    def config(self) -> C:
        """The options of groups that name no others."""
        options = dict(self.defaults)
        if "betas" in options:
            options["beta1"], options["beta2"] = options.pop("betas")
        return self.config_type(**options)


def _count(batch: UpdateBatch, updates: int) -> None:
    for state in batch.states:
        state.step += updates
    bump(batch.params)
    if "master" in batch.kinds:
        for p, state in zip(batch.params, batch.states, strict=True):
            state.version = p._version.count


def _step_in_float32(
    kernels: Any, family: Any, batch: UpdateBatch, grads: list[Any], scalars: np.ndarray, graph: cuda_graph.Graph | None
) -> None:
    """One step on float32 copies of parameters, gradients and states, which then go back, rounded."""
    columns = [batch.arrays, *([state.arrays[kind] for state in batch.states] for kind in batch.kinds)]
    cast, assign = kernels.elementwise.cast, kernels.elementwise.assign
    wide = [[cast(array, float32) for array in column] for column in columns]
    with contextlib.nullcontext() if graph is None else graph.paused():
        table = family.Table(*wide)
    family.step(table, [cast(grad, float32) for grad in grads], scalars)
    for column, copies in zip(columns, wide, strict=True):
        for array, copy in zip(column, copies, strict=True):
            assign(array, copy)
