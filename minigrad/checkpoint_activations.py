"""Activation checkpointing: part of the forward pass is computed again in ``backward`` instead of being kept.

The graph of a checkpointed function is recorded as always, so edges, leaves, hooks and the order of ``backward`` are
those of the plain function. Only what its nodes have saved is dropped. When ``backward`` comes to the first of them,
the function runs again. The second graph is matched with the first node by node, and its saved arrays move over.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .autograd import Deferred, Function, TensorCore, Version, shape_and_dtype
from .errors import bad_state, bad_type
from .grad_store import next_id
from .mixed_precision import autocasting
from .modes import current_graph, detect_anomaly, enable_grad, is_grad_enabled, no_grad, of_thread
from .random import Draws, recording, replaying

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # a function and its arguments


def checkpoint(fn: Callable[..., Any], /, *inputs: Any, **kwargs: Any) -> Any:
    """``fn(*inputs, **kwargs)``, whose intermediate results are not kept for ``backward`` but computed again there.

    Memory falls from all activations of ``fn`` to its inputs, for the time of a second forward pass. Gradients are
    those of the plain call, to the bit, for the inputs and for everything else that ``fn`` uses. Random draws are
    repeated, from whichever Generator. Calls may be nested. ``fn`` returns a tensor, or tuples, lists and dicts of
    tensors. With ``retain_graph=True`` what the second run saved stays.

    ``fn`` must compute the same again, on as many threads: they decide whether an ``nn.Block`` is one operation or
    several. RuntimeError in ``backward`` if the second run records other operations, draws other random numbers, or
    gives outputs with other sums along their rows; and if an input or a leaf was changed in place since. State that
    ``fn`` changes, like the running averages of a BatchNorm, is changed twice.

    Source: Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost" (2016).
    """
    if not is_grad_enabled():
        return fn(*inputs, **kwargs)
    kwargs.pop("use_reentrant", None)  # PyTorch's, and no argument of fn
    start = next_id()
    draws: Draws = []
    with recording(draws), autocasting(of_thread.mode.autocast):
        result = fn(*inputs, **kwargs)
    outputs = list(_tensors(result))
    if not outputs:
        found = f"{_name(fn)} returned {type(result).__name__}"
        raise bad_type(f"checkpoint: {found}; expected a tensor, or a tuple, list or dict of tensors")
    recomputation: Any = _Recomputation((fn, inputs, kwargs), draws, outputs, start)
    for node in recomputation.region(outputs, start):
        if node.saved:
            node.saved = recomputation
    return result


def _tensors(value: Any) -> Iterator[TensorCore]:
    """The tensors in a value: itself, or those in tuples, lists and dicts."""
    if isinstance(value, TensorCore):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)


@no_grad()
def _row_sums(outputs: list[TensorCore]) -> list[Any]:
    """What tells two results apart at little cost: sums along the last dimension."""
    tensor_type: Any = TensorCore.tensor_type  # each output is one
    with autocasting(None):
        return [tensor_type.sum(x, dim=-1).data if x.data.ndim else x.data for x in outputs]


class _Recomputation(Deferred):
    """Stands in ``saved`` of the nodes of one checkpointed call, and fills it again."""

    def __init__(self, call: Call, draws: Draws, outputs: list[TensorCore], start: int) -> None:
        self.fn, inputs, kwargs = self.call = call
        self.draws = draws
        self.autocast, self.anomaly = of_thread.mode.autocast, of_thread.mode.anomaly
        # Weak, because the nodes refer to this object: a graph goes with its last tensor, without the collector.
        self.roots = [None if node is None else weakref.ref(node) for node in self._nodes_of(outputs, start)]
        self.sums = _row_sums(outputs)
        sources = {edge for node in self.region(outputs, start) for edge in node.edges}
        watched = [*_tensors([inputs, kwargs]), *(leaf for leaf in sources if isinstance(leaf, TensorCore))]
        self.versions: list[tuple[Version, int]] = [(x._version, x._version.count) for x in watched]

    @staticmethod
    def _nodes_of(outputs: list[TensorCore], start: int) -> list[Function | None]:
        """The node of each output, None where it was not recorded after ``start``."""
        return [x.node if x.node is not None and x.node.order > start else None for x in outputs]

    def region(self, outputs: list[TensorCore], start: int) -> list[Function]:
        """The nodes recorded after ``start`` from which the outputs were computed."""
        found = dict.fromkeys(node for node in self._nodes_of(outputs, start) if node is not None)
        nodes = list(found)
        for node in nodes:  # grows while it is walked
            for edge in node.edges:
                if isinstance(edge, Function) and edge.order > start and edge not in found:
                    found[edge] = None
                    nodes.append(edge)
        return nodes

    def restore(self, node: Function) -> None:
        for version, count in self.versions:
            if version.count != count:
                which = f"an input or a parameter of {_name(self.fn)} was changed in place after the call"
                why = f"(version {version.count}, expected {count}), so it cannot be computed again"
                raise bad_state(f"checkpoint: {which} {why}; change a copy instead (.clone()), or after backward")
        start = next_id()
        fn, inputs, kwargs = self.call
        # With anomaly detection as in the first run: within it no plan of ``fast`` runs.
        with enable_grad(), autocasting(self.autocast), detect_anomaly(self.anomaly), replaying(self.draws) as left:
            outputs = list(_tensors(fn(*inputs, **kwargs)))
            if next(left, None) is not None:
                raise _mismatch(_name(self.fn), "fewer random draws")
        pairs = self._match(outputs, start)
        inner = {}
        for new, old in pairs.items():
            standing: Any = old.saved
            if standing is self:  # not one that an earlier backward has released
                old.saved, old.versions, old.saved_at, new.saved = new.saved, new.versions, new.saved_at, ()
                if isinstance(old.saved, _Recomputation):
                    inner[id(old.saved)] = old.saved
        for nested in inner.values():
            nested.move(pairs)
        standing = node.saved
        if standing is self:
            came = f"backward came to {type(node).__name__} inside of {_name(self.fn)} by another way than its outputs"
            raise bad_state(f"checkpoint: {came}; return the tensor from the function")

    def move(self, pairs: dict[Function, Function]) -> None:
        """Belong to other nodes from now on."""
        moved = [pairs[node] if root and (node := root()) in pairs else None for root in self.roots]
        self.roots = [None if node is None else weakref.ref(node) for node in moved]

    def _match(self, outputs: list[TensorCore], start: int) -> dict[Function, Function]:
        """For each node of the second run the one of the first."""
        name = _name(self.fn)
        if len(outputs) != len(self.roots):
            raise _mismatch(name, f"{len(self.roots)} tensors at first, then {len(outputs)}")
        for first, second in zip(self.sums, _row_sums(outputs)):
            if first.shape != second.shape or first.dtype != second.dtype:
                raise _mismatch(name, "outputs of other shapes or dtypes")
            kernels = outputs[0].device.kernels
            if current_graph() is not None:  # whose values are not there yet; the eager step before has compared
                continue
            if kernels.to_host(first).tobytes() != kernels.to_host(second).tobytes():
                raise _mismatch(name, "other values")
        pairs: dict[Function, Function] = {}
        matched: set[Any] = set()
        todo: list[tuple[Any, Any]] = []
        for root, new in zip(self.roots, self._nodes_of(outputs, start)):
            if (root is None) != (new is None):
                raise _mismatch(name, "another graph")
            if root is not None and (old := root()) is not None:  # else the first run's output is gone
                todo.append((old, new))
        while todo:
            old, new = todo.pop()
            if new in pairs or old in matched:
                if pairs.get(new) is not old:
                    raise _mismatch(name, "another graph")
                continue
            matched.add(old)
            if type(old) is not type(new) or len(old.edges) != len(new.edges):
                raise _mismatch(name, f"{type(old).__name__} at first, then {type(new).__name__}")
            pairs[new] = old
            for before, after in zip(old.edges, new.edges):
                if before is None or after is None:
                    if before is not after:
                        raise _mismatch(name, f"an input of {type(old).__name__} requires grad in one run only")
                    continue
                if shape_and_dtype(before) != shape_and_dtype(after):
                    shapes = f"{shape_and_dtype(before)[0]} at first, then of {shape_and_dtype(after)[0]}"
                    raise _mismatch(name, f"{type(old).__name__} of {shapes}")
                if isinstance(after, Function) and after.order > start:
                    todo.append((before, after))
                elif isinstance(after, TensorCore) and after is not before and after._id < start:
                    raise _mismatch(name, f"another leaf as input of {type(old).__name__}")
        return pairs


def _mismatch(name: str, what: str) -> RuntimeError:
    remedy = "it must depend on its inputs, on parameters and on minigrad's random generators only"
    return bad_state(f"checkpoint: {name} was not the same when backward computed it again: {what}; {remedy}")
