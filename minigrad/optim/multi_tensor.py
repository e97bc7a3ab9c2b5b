"""MultiTensorOptimizer: what the optimizers have in common that update all parameters of one dtype in one launch."""

from __future__ import annotations

import contextlib
import functools
from abc import abstractmethod
from typing import Any

import numpy as np

from .. import cuda_graph
from ..dtypes import float32, is_half
from ..errors import located
from ..grad_store import GradStore
from ..tensor import Tensor
from ..versions import bump
from .optimizer import Optimizer, ParamState, Update


class MultiTensorOptimizer(Optimizer):
    """An optimizer whose arithmetic is a kernel family with a table of addresses: a subclass names the family and
    gives a parameter's scalars.

    float16 and bfloat16 parameters, with a state of the same dtype, are updated by way of float32 copies and rounded
    once in a step, as by PyTorch's fused optimizers. An update below half a unit in the last place is lost (for
    bfloat16, below 1/512 of the weight): keep the weights in float32 where that matters, or use an optimizer with
    ``master_weights``, which keeps a float32 copy of each half parameter, its ``master``, with float32 states; a step
    updates these and rounds the master to the parameter, in one launch.
    """

    capturable = True
    family: str
    """The kernel family: ``device.kernels.<family>`` has ``Table`` and ``step``."""

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self.master_weights: bool = bool(self.extra_arrays)
        self._tables: dict[Any, tuple[list[Any], list[ParamState], Any]] = {}
        super().__init__(params, defaults)

    @abstractmethod
    def _row(self, group: dict[str, Any], t: int) -> tuple[float, ...]:
        """The kernel's scalars for the t-th update of a parameter of that group, in double precision."""

    def update(self, grads: GradStore) -> None:
        """``step`` without counting it: for those who make one step in several parts, such as one bucket at a time."""
        kinds_of = [self.kinds_of(group) for group in self.param_groups]
        batches: dict[Any, list[Update]] = {}
        for update in self._collect(grads):
            p = update.param
            kinds = kinds_of[update.group] + self.extra_kinds(p)
            batches.setdefault((p.device, p.data.dtype, kinds), []).append(update)
        graph = cuda_graph.current()
        with contextlib.nullcontext() if graph is None else graph.paused():
            prepared = [(batch, *self._prepare(batch, kinds)) for (_, _, kinds), batch in batches.items()]
        for batch, states, table in prepared:
            kernels = batch[0].param.device.kernels
            family = getattr(kernels, self.family)
            scalars = self._scalars(batch, states) if graph is None else self._captured(graph, batch, states)
            if is_half(batch[0].param.data.dtype) and not self.master_weights:
                _step_in_float32(kernels, family, batch, states, table, scalars)
            else:
                family.step(table, [update.grad for update in batch], scalars)
            if graph is None:
                _count(batch, states, 1)

    def _captured(self, graph: cuda_graph.Graph, batch: list[Update], states: list[ParamState]) -> np.ndarray:
        """The scalars of each launch of a graph, whose launches count as updates."""
        batch = [update._replace(grad=None) for update in batch]  # whose memory the graph uses again
        arrays = [update.param.data for update in batch]
        graph.count(functools.partial(_count, batch, states))
        graph.valid_while(lambda: self._unchanged(batch, arrays, states))
        return graph.varying(functools.partial(self._scalars, batch, states))

    def _unchanged(self, batch: list[Update], arrays: list[Any], states: list[ParamState]) -> bool:
        """Whether parameters and states are still the ones that a graph updates."""
        now = zip(batch, arrays, states, strict=True)
        return all(
            u.param.data is array
            and self.state.get(u.param._id) is state
            and (state.version is None or state.version == u.param._version.count)
            for u, array, state in now
        )

    def _prepare(self, batch: list[Update], kinds: tuple[str, ...]) -> tuple[list[ParamState], Any]:
        """The states and the kernel's table of addresses of these parameters, kept while their memory is the same."""
        ids = [update.param._id for update in batch]
        key = kinds, *ids
        params = [update.param.data for update in batch]
        if "master" in kinds:
            self._keep_masters(batch)
        known = self._tables.get(key)
        if known is not None:
            now = zip(params, known[0], map(self.state.get, ids), known[1], strict=True)
            if False not in [p is cached and state is cached_state for p, cached, state, cached_state in now]:
                return known[1], known[2]
        for update in batch:  # arrays of the table that is used again have passed this
            self._check_updatable(update.param)
        self._make_states((update.param for update in batch), kinds)
        states = [self._state_of(update.param) for update in batch]
        family = getattr(batch[0].param.device.kernels, self.family)
        if "master" in kinds:
            columns = [[state.arrays[kind] for state in states] for kind in ("master", *self.state_arrays)]
            table = family.Table(*columns, weights=params)
        elif is_half(params[0].dtype):
            read_only = [i for i, p in enumerate(params) if not p.flags.writeable]
            if read_only:
                raise located(ValueError(f"array {read_only[0]} is read-only, so it cannot be updated in place"))
            table = kinds
        else:
            table = family.Table(params, *([state.arrays[kind] for state in states] for kind in kinds))
        if len(self._tables) >= 64:  # the set of parameters that have gradients keeps changing
            self._tables.clear()
        self._tables[key] = params, states, table
        return states, table

    def dtype_of(self, p: Tensor, kind: str) -> Any:
        """The dtype of an array of a parameter's state."""
        return float32 if self.master_weights and is_half(p.data.dtype) else p.data.dtype

    def extra_kinds(self, p: Tensor) -> tuple[str, ...]:
        """Those of ``extra_arrays`` that the state of this parameter has."""
        return self.extra_arrays if is_half(p.data.dtype) else ()

    def _keep_masters(self, batch: list[Update]) -> None:
        """Make the masters of new parameters, and make those anew whose parameter somebody else has changed."""
        params = [update.param for update in batch]
        new = {p._id for p in params if p._id not in self.state or "master" not in self.state[p._id].arrays}
        self._make_states([p for p in params if p._id in new], ("master",))
        for p in params:
            made = p._id in new
            if made or self.state[p._id].version != p._version.count:
                state = self._state_of(p)
                k, master = p.device.kernels, state.arrays["master"]
                rounded = k.elementwise.cast(master, p.data.dtype)
                if made or k.to_host(rounded).tobytes() != k.to_host(p.data).tobytes():
                    k.elementwise.assign(master, p.data)
                state.version = p._version.count

    def _scalars(self, batch: list[Update], states: list[ParamState]) -> np.ndarray:
        """float64 (number of parameters, number of scalars): each parameter's scalars for its coming update."""
        # Few rows differ: one for each group, unless parameters were frozen for a while.
        rows: dict[tuple[int, int], int] = {}
        index = [rows.setdefault((update.group, state.step), len(rows)) for update, state in zip(batch, states)]
        return np.array([self._row(self.param_groups[group], t + 1) for group, t in rows])[index]

    def reset(self) -> None:
        """Forget the moments and all counts; groups and options stay."""
        super().reset()
        self._tables.clear()


def _count(batch: list[Update], states: list[ParamState], updates: int) -> None:
    for state in states:
        state.step += updates
    bump(update.param for update in batch)
    if states and states[0].version is not None:  # of all, or of none: a batch has masters or has not
        for update, state in zip(batch, states, strict=True):
            state.version = update.param._version.count


def _step_in_float32(
    kernels: Any,
    family: Any,
    batch: list[Update],
    states: list[ParamState],
    kinds: tuple[str, ...],
    scalars: np.ndarray,
) -> None:
    """One step on float32 copies of parameters, gradients and states, which then go back, rounded."""
    columns = [[update.param.data for update in batch], *([state.arrays[kind] for state in states] for kind in kinds)]
    cast, assign = kernels.elementwise.cast, kernels.elementwise.assign
    wide = [[cast(array, float32) for array in column] for column in columns]
    family.step(family.Table(*wide), [cast(update.grad, float32) for update in batch], scalars)
    for column, copies in zip(columns, wide, strict=True):
        for array, copy in zip(column, copies, strict=True):
            assign(array, copy)
