"""``grad``: the gradients of some leaves as a tuple, as ``torch.autograd.grad`` gives them."""

from collections.abc import Sequence

from .errors import bad_state, expect
from .grad_store import GradStore
from .tensor import Tensor


def grad(
    outputs: Tensor | Sequence[Tensor], inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None, *,
    retain_graph: bool = False, create_graph: bool = False, allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the sum of ``outputs`` for each of ``inputs``, which are leaves.

    ``grad_outputs`` are what the outputs' Jacobians are multiplied with; without them the outputs are scalars.

    Raises RuntimeError for an input on which no output depends, unless ``allow_unused``, which gives None, and for one
    that is no leaf; NotImplementedError for ``create_graph=True``.
    """
    roots = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    seeds = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs or [None] * len(roots))
    expect(len(seeds) == len(roots), "grad_outputs", len(seeds), f"one for each of {len(roots)} outputs")
    grads = GradStore()
    for left, (root, seed) in enumerate(zip(roots, seeds), 1 - len(roots)):
        grads = grads + root.backward(seed, retain_graph=retain_graph or left < 0, create_graph=create_graph)
    found = tuple(grads.get(x) for x in ([inputs] if isinstance(inputs, Tensor) else inputs))
    lacking = [i for i, gradient in enumerate(found) if gradient is None]
    if lacking and not allow_unused:
        unused = "the outputs do not depend on it (then allow_unused=True gives None), it does not require grad"
        cut = "or an operation computed it: cut there with .detach().requires_grad_()"
        raise bad_state(f"grad: no gradient for input {lacking[0]}: {unused}, {cut}")
    return found
