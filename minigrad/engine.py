"""``backward``: the walk over the graph, from its newest node to its oldest.

Ids grow with time and a node's inputs are older than itself, so that is a topological order and no recursion is needed.
What every op would otherwise repeat is done here, once. Gradients are summed back over broadcast dimensions, and those
of a tensor that is used several times are added. Saved arrays are freed on the way.

All state of a walk is its own, so several threads may walk graphs that share leaves, or one retained graph.
"""

import operator
import sys
from collections.abc import Callable
from typing import Any, Protocol

from .autograd import Deferred, Function, TensorCore, anywhere, owner, shape_and_dtype
from .device import CPU
from .dtypes import float32, is_half
from .errors import bad_state, bad_value, located
from .grad_store import GradStore, TensorId, unread
from .modes import of_thread

Pending = dict[Any, Any]
"""Gradients under construction: raw arrays by node, or by leaf."""


class BackwardHook(Protocol):
    """Told, during ``backward``, about each leaf as soon as nothing can add to its gradient any more."""

    def on_leaf_grad_ready(self, id: TensorId, grad: Any) -> None:
        """``grad`` is the leaf's final gradient, the same Tensor that the GradStore will hold."""


class _Released:
    """Stands in ``node.saved`` once ``backward`` has used and freed the saved arrays."""


_RELEASED: Any = _Released()


def backward(
    root: Any,
    gradient: Any = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
    hook: BackwardHook | None = None,
) -> GradStore:
    """Gradients of ``root`` with respect to the leaves that require grad (boostr's ``backward`` and
    ``backward_with_hooks``).

    ``root`` must be a scalar (one element) unless ``gradient``, a tensor of its shape and dtype, says what to multiply
    the Jacobian with. Saved arrays are freed as they are used; ``retain_graph=True`` keeps them for a second call.
    ``hook.on_leaf_grad_ready(id, grad)`` is called as soon as a leaf's gradient is final.

    Raises RuntimeError if ``root`` does not require grad, or if the graph was freed by an earlier call. Raises it also
    if a saved tensor was changed in place; NotImplementedError for ``create_graph=True``.
    """
    if create_graph:
        why = "backward works on raw arrays and is not itself recorded; there are no higher-order gradients"
        raise located(NotImplementedError(f"create_graph=True: {why}"))
    if not root.requires_grad:
        why = "no input of its computation had requires_grad=True, or it was computed under no_grad or detached"
        raise bad_state(f"backward of a tensor that does not require grad: {why}")
    start = root if root.node is None else root.node
    nodes, finished_by = reachable(start)
    if of_thread.mode.graph is not None:
        of_thread.mode.graph.check_nodes(nodes)
    device, kernels = root.device, root.device.kernels
    pending: Pending = {start: _seed(root, gradient, kernels)}
    grads = GradStore()
    if not nodes:
        _finish([root], pending, grads, hook, device, kernels)
    anomaly = of_thread.mode.anomaly
    with kernels.quiet():
        while nodes:
            node = nodes.pop()  # sorted: the newest is last
            if node in pending:
                _run(node, pending.pop(node), pending, anomaly)
            if not retain_graph and node.saved:
                node.saved = _RELEASED
            if node in finished_by:
                _finish(finished_by[node], pending, grads, hook, device, kernels)
    return grads if hook else unread(grads)


def _seed(root: Any, gradient: Any, kernels: Any) -> Any:
    """The array that the walk starts with. Nobody else may refer to it: see ``_add``."""
    if gradient is None:
        if root.data.size != 1:
            why = "only a scalar has a gradient by itself; reduce it (for example .sum() or .mean()) or pass gradient="
            raise bad_state(f"backward of a tensor of shape {tuple(root.data.shape)}: {why}")
        return kernels.ones(root.data.shape, root.data.dtype)
    seed = gradient.data if isinstance(gradient, TensorCore) else kernels.as_array(gradient)
    if seed.shape != root.data.shape or seed.dtype != root.data.dtype:
        given = f"a {type(gradient).__name__} of shape {tuple(seed.shape)} and dtype {seed.dtype}"
        wanted = f"the tensor has {tuple(root.data.shape)} and {root.data.dtype}"
        raise bad_value(f"gradient is {given}, but {wanted}; a loss needs none: loss.backward()")
    return seed


def reachable(start: Any) -> tuple[list[Function], dict[Function, list[TensorCore]]]:
    """All nodes below ``start``, oldest first; and by node the leaves that no older node uses."""
    if not isinstance(start, Function):
        return [], {}
    nodes: list[Function] = [start]
    seen: set[Function] = {start}
    oldest: dict[TensorCore, Function] = {}  # of each leaf, the oldest node that uses it
    for node in nodes:  # grows while it is walked
        for target in node.edges:
            if target is None:
                continue
            if isinstance(target, Function):
                if target not in seen:
                    seen.add(target)
                    nodes.append(target)
            elif target not in oldest or node.order < oldest[target].order:
                oldest[target] = node
    nodes.sort(key=_order)
    finished_by: dict[Function, list[TensorCore]] = {}
    for leaf, node in oldest.items():
        finished_by.setdefault(node, []).append(leaf)
    return nodes, finished_by


_new: Callable[..., Any] = object.__new__
_order: Callable[[Function], int] = operator.attrgetter("order")


def _run(node: Function, dy: Any, pending: Pending, anomaly: bool) -> None:
    """Call the node's backward and add the results to its inputs' gradients."""
    if type(node.saved) is not tuple:
        _restore(node)
    if node.saved and node.saved_at < anywhere.changed_at:
        _refuse_changes(node)
    if node.device is not CPU:
        node.device.activate()
    kernels = node.kernels
    if node.half is not None and dy.dtype == node.half:
        dy = kernels.elementwise.cast(dy, float32)
    if node.adds_in_place:
        _run_into(node, dy, pending)
        return
    results = node.backward(dy)
    if type(results) is not tuple:
        results = (results,)
    if len(results) != len(node.edges):
        name = type(node).__name__
        raise bad_state(f"{name}.backward returned {len(results)} gradients for {len(node.edges)} inputs")
    for i, target in enumerate(node.edges):
        grad = results[i]
        if target is None or grad is None:
            continue
        if not isinstance(grad, kernels.Array):
            grad = kernels.as_array(grad)
        if anomaly:
            _refuse_nan(node, i, grad)
        if isinstance(target, Function):
            shape, dtype = target.out_shape, target.out_dtype
        else:
            shape, dtype = target.data.shape, target.data.dtype
        if grad.shape != shape:
            grad = _sum_to(type(node).__name__, i, grad, shape, kernels)
        if grad.dtype is not dtype and grad.dtype != dtype:
            grad = kernels.elementwise.cast(grad, dtype)
        if target not in pending:
            pending[target] = grad
        # Nothing else refers to the sum so far: add in place. Why 2: see _is_ours, which this is, without the call.
        elif sys.getrefcount(pending[target]) == 2 and pending[target].base is None:
            kernels.elementwise.add_into(pending[target], grad)
        else:
            _add(pending, target, grad, kernels)


def _run_into(node: Function, dy: Any, pending: Pending) -> None:
    """``_run`` for an op that adds to the gradients of its inputs in place."""
    kernels = node.kernels
    targets = [target for target in node.edges if target is not None]
    if node.half is not None or (is_half(dy.dtype) and not getattr(node, "adds_once", node.is_view)):
        wide = [kernels.zeros(shape_and_dtype(target)[0], float32) for target in targets]
        node.backward_into(dy if dy.dtype == float32 else kernels.elementwise.cast(dy, float32), *wide)
        for target, total in zip(targets, wide, strict=True):
            grad = kernels.elementwise.cast(total, shape_and_dtype(target)[1])
            if target in pending:
                _add(pending, target, grad, kernels)
            else:
                pending[target] = grad
        return
    for target in targets:
        if target not in pending:
            pending[target] = kernels.zeros(*shape_and_dtype(target))
        elif not _is_ours(pending, target):
            pending[target] = kernels.copy(pending[target])
    node.backward_into(dy, *[pending[target] for target in targets])


def _is_ours(pending: Pending, target: Any) -> bool:
    """Whether nobody else can see the gradient of ``target`` so far, so that it may be written to.

    That is so if nothing but ``pending`` refers to the array (that reference and the argument's make two) and it is no
    view. A saved array, the user's or dy itself where it was handed on twice has another owner.
    """
    return sys.getrefcount(pending[target]) == 2 and pending[target].base is None


def _add(pending: Pending, target: Any, grad: Any, kernels: Any) -> None:
    """Add to the gradient of ``target``: in place if the array is ours, else a new one is made for the sum."""
    if _is_ours(pending, target):
        kernels.elementwise.add_into(pending[target], grad)
    else:
        total = kernels.elementwise.add(pending[target], grad)
        pending[target] = total if isinstance(total, kernels.Array) else kernels.as_array(total)


def _finish(
    leaves: list[Any], pending: Pending, grads: GradStore, hook: BackwardHook | None, device: Any, kernels: Any
) -> None:
    """Give the leaves their gradients, in contiguous memory that nothing else refers to. Most are on ``device``."""
    for leaf in leaves:
        if leaf not in pending:
            continue
        base = pending[leaf].base  # an array with memory of its own that only its view and this name refer to is ours
        alone = base is None or (getattr(base, "base", base) is None and sys.getrefcount(base) == 3)
        ours = alone and sys.getrefcount(pending[leaf]) == 2
        array = pending.pop(leaf)
        grad = _new(TensorCore.tensor_type)
        if not (ours and array.flags.c_contiguous and array.flags.writeable):
            array = (kernels if leaf.device is device else leaf.device.kernels).copy(array)
        grad._init(array, leaf.device)
        grads.insert(leaf, grad)
        if hook is not None:
            hook.on_leaf_grad_ready(TensorId(leaf._id), grad)


def _refuse_changes(node: Function) -> None:
    """Raise RuntimeError if one of the saved arrays was changed in place since it was saved."""
    saved = {id(owner(array)) for array in node.saved if isinstance(array, node.kernels.Array)}
    for version in node.versions:
        if version.changed_at > node.saved_at and version.memory in saved:
            tensor = f"a tensor that {type(node).__name__} needs for its gradient"
            changed = f"was changed in place after it was computed (it is at version {version.count})"
            raise bad_state(f"{tensor} {changed}; change a copy instead (.clone()){_called_at(node)}")


def _restore(node: Function) -> None:
    """Compute saved arrays that were put off; refuse to go on without those that an earlier backward has freed."""
    if node.saved is _RELEASED:
        again = f"backward through {type(node).__name__} a second time: its saved arrays were freed by the first"
        remedy = "pass retain_graph=True to the first call, or compute the loss again"
        raise bad_state(f"{again}; {remedy}{_called_at(node)}")
    while isinstance(node.saved, Deferred):
        node.saved.restore(node)


def _called_at(node: Function) -> str:
    line = getattr(node, "line", None)
    return f"\n  {type(node).__name__} was called at {line}" if line else ""


def _refuse_nan(node: Function, i: int, grad: Any) -> None:
    kernels = node.kernels
    if kernels.to_host(kernels.reduce.any(kernels.comparison.isnan(grad), tuple(range(grad.ndim)), False)):
        found = f"returned NaN in the gradient of input {i} of shape {tuple(grad.shape)}"
        raise bad_state(f"{type(node).__name__}.backward {found}{_called_at(node)}")


def _sum_to(name: str, i: int, grad: Any, shape: tuple[int, ...], kernels: Any) -> Any:
    """Undo broadcasting: sum ``grad`` over the dimensions that broadcasting added or stretched."""
    extra = grad.ndim - len(shape)
    if extra < 0 or any(n != m and n != 1 for n, m in zip(shape, grad.shape[extra:], strict=True)):
        raise bad_state(f"{name}.backward returned a gradient of {tuple(grad.shape)} for input {i} of {tuple(shape)}")
    axes = tuple(range(extra)) + tuple(extra + j for j, n in enumerate(shape) if n == 1 and grad.shape[extra + j] != 1)
    total = kernels.reduce.sum(grad, axes, False)
    return total if total.shape == shape else total.reshape(shape)
