"""Losses. ``nn.functional`` has them under the same names."""

from typing import Any, TypeAlias

from .. import hints
from ..dtypes import float32, float64, int64
from ..errors import bad_index, bad_type, bad_value, check_choice, expect
from ..methods.combine import combine, combine_three
from ..mixed_precision import autocast_to_float32, of_halves
from ..modes import cast_inputs, current_graph
from ..ops import cross_entropy as cross_entropy_ops, elementwise, indexing, linear as linear_ops
from ..ops.linear_cross_entropy import LinearCrossEntropy
from ..shapes import check_range
from ..tensor import Tensor, check_tensor, floating, in_dtype_of

Weight: TypeAlias = Tensor | None  # None: 1 everywhere, or for a bias 0
REDUCTIONS = ("mean", "sum", "none")


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    """The mean or sum of ``losses``, or themselves."""
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


@autocast_to_float32
def cross_entropy(
    input: Tensor, target: Tensor, weight: Weight = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """-log softmax(input)[target]: input (N, C) or (C,) or (N, C, d1, ...), target of class indices (N, d1, ...).

    A floating target of the input's shape holds a probability of each class: -sum(target * log softmax(input)).

    ``weight`` (C,) scales each class; targets equal to ``ignore_index`` count for nothing; ``label_smoothing`` s mixes
    the target with s / C of every class. The mean is over the targets' weights (probabilities: over the rows); of no
    target at all it is NaN. Raises TypeError for other targets, IndexError naming a target out of range.
    """
    check_choice("cross_entropy", "reduction", reduction, REDUCTIONS)
    expect(0 <= label_smoothing <= 1, "cross_entropy: label_smoothing", label_smoothing, "[0, 1]")
    class_dim = 0 if check_tensor("cross_entropy", input).ndim == 1 else 1
    if check_tensor("cross_entropy", target).is_floating_point() and input.ndim and target.shape == input.shape:
        return _soft_cross_entropy(input, target, weight, class_dim, reduction, label_smoothing)
    if target.dtype.kind not in "iu":
        remedy = f"pass probabilities of the input's shape {input.shape}, not {target.shape}"
        what = f"targets are class indices, not {target.dtype}"
        raise bad_type(f"cross_entropy: {what}; convert with .long(), or {remedy}")
    expected = input.shape[:class_dim] + input.shape[class_dim + 1 :]
    if not input.ndim or target.shape != expected:
        remedy = "for (B, T, C) logits: cross_entropy(logits.view(-1, C), targets.view(-1))"
        shapes = f"input {input.shape}, target {target.shape}; expected input (N, C) with target (N,)"
        raise bad_value(f"cross_entropy: {shapes}, so {remedy}")
    classes = input.shape[class_dim]
    _check_class_weight(weight, classes)
    logits = input if class_dim == input.ndim - 1 else input.permute(0, *range(2, input.ndim), 1)
    if logits.ndim != 2:
        logits = logits.reshape(-1, classes) if input.numel() else logits.reshape(target.numel(), classes)
    k = input.device.kernels
    labels, count = _labels("cross_entropy", target, classes, ignore_index, input.dtype)
    class_weight = None if weight is None else k.copy(weight.to(input.dtype).data)  # which may change before backward
    options = (ignore_index, label_smoothing, class_weight)
    divisor: Any = {"mean": count if weight is None else None, "sum": 1.0}.get(reduction)
    logits = floating("cross_entropy", logits)
    losses = cross_entropy_ops.CrossEntropy.apply(logits, labels, options=options, divisor=divisor)
    if reduction == "none":
        return losses.reshape(target.shape)
    if weight is None or reduction == "sum":
        return losses
    counted = labels != ignore_index
    return losses.sum() / weight.detach().to(input.dtype)[labels.where(counted, 0)].where(counted, 0.0).sum()


def _labels(name: str, target: Tensor, classes: int, ignore_index: int, dtype: Any) -> tuple[Tensor, Any]:
    """The target as int64 (N,), and how many of it count, a number if all do; IndexError naming one out of range."""
    labels, k, graph = target if target.data.dtype == int64 else target.long(), target.device.kernels, current_graph()
    if labels.ndim != 1:
        labels = Tensor.wrap(k.movement.reshape(labels.data, (labels.numel(),)), labels.device)
    # In a graph they are others in each launch.
    may_all = classes and (graph is None or labels.device is not graph.device) and not 0 <= ignore_index < classes
    if may_all and k.cross_entropy.check_targets(labels.data, classes, 0) < 0:
        return labels, float(labels.data.size)
    bad = k.cross_entropy.check_targets(labels.data, classes, ignore_index)
    if bad >= 0:
        known = f"{classes} classes (ignore_index is {ignore_index})"
        raise bad_index(f"{name}: target {int(labels[bad])} at position {bad} is out of range for {known}")
    count = k.reduce.sum(k.comparison.ne(labels.data, ignore_index), (0,), False, "int64")
    return labels, k.elementwise.cast(count, float64 if dtype == float64 else float32)


def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """``cross_entropy(linear(input, linear_weight), target)`` of class indices without ever having all logits: input
    (..., in), linear_weight (classes, in), target (...) of integers -> the mean or sum.

    The logits are the largest arrays of a training step if the vocabulary is large. Here they are made in chunks of 256
    MiB, on a GPU of 512 MiB. Each chunk is turned into its gradient and used for those of input and linear_weight. All
    that is done in the forward pass (Hsu et al., "Liger Kernel", 2024). Without rows, or with input and weight of
    different dtypes, the two operations run.

    Raises TypeError and IndexError as ``cross_entropy``, ValueError for other shapes and for reduction="none".
    """
    if reduction not in ("mean", "sum"):
        raise bad_value(f"linear_cross_entropy: reduction={reduction!r}; expected 'mean' or 'sum'")
    x, weight = floating("linear_cross_entropy", input), check_tensor("linear_cross_entropy", linear_weight)
    if check_tensor("linear_cross_entropy", target).dtype.kind not in "iu":
        remedy = "convert with .long(), or use cross_entropy, which takes probabilities"
        raise bad_type(f"linear_cross_entropy: targets are class indices, not {target.dtype}; {remedy}")
    if not x.ndim or weight.ndim != 2 or x.shape[-1] != weight.shape[1] or target.shape != x.shape[:-1]:
        shapes = f"input {input.shape}, linear_weight {weight.shape}, target {target.shape}"
        raise bad_value(f"linear_cross_entropy: {shapes}; expected (..., in), (classes, in), (...)")
    x, weight = cast_inputs("half", x, weight)
    if weight.dtype != x.dtype or not target.numel():
        logits = combine(linear_ops.Linear, x.reshape(target.numel(), x.shape[-1]), weight)
        return cross_entropy(logits, target.reshape(-1), ignore_index=ignore_index, reduction=reduction)
    labels, count = _labels("linear_cross_entropy", target, weight.shape[0], ignore_index, x.dtype)
    divisor = 1.0 if reduction == "sum" else count
    return in_dtype_of(x, LinearCrossEntropy.apply(x, weight, labels, ignore_index=ignore_index, divisor=divisor))


def _check_class_weight(weight: Weight, classes: int) -> None:
    if weight is not None and weight.shape != (classes,):
        raise bad_value(f"cross_entropy: weight of shape {weight.shape}; expected ({classes},)")


def _soft_cross_entropy(
    input: Tensor, target: Tensor, weight: Weight, class_dim: int, reduction: str, label_smoothing: float
) -> Tensor:
    classes = input.shape[class_dim]
    _check_class_weight(weight, classes)
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / max(classes, 1)
    losses = -target * floating("cross_entropy", input).log_softmax(class_dim)
    if weight is not None:
        losses = losses * weight.detach().reshape(classes, *(1,) * (input.ndim - class_dim - 1))
    return _reduced(losses.sum(class_dim), reduction)


def nll_loss(
    input: Tensor, target: Tensor, weight: Weight = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """-input[target]: log-probabilities (C,), (N, C) or (N, C, d1, ...), class indices of shape (), (N,), (N, d1, ...).

    ``weight`` (C,) scales each class; targets equal to ``ignore_index`` count for nothing. The mean is over the
    targets' weights; of no target at all it is NaN. Raises IndexError for a target out of range.
    """
    check_choice("nll_loss", "reduction", reduction, REDUCTIONS)
    class_dim = 0 if floating("nll_loss", input).ndim == 1 else 1
    if not input.ndim or target.shape != input.shape[:class_dim] + input.shape[class_dim + 1 :]:
        raise bad_value(f"nll_loss: input {input.shape}, target {target.shape}; expected (N, C) and (N,)")
    classes, wide = input.shape[class_dim], float64 if input.dtype == float64 else float32
    _check_class_weight(weight, classes)
    check_range("nll_loss", target, None)
    _, count = _labels("nll_loss", target, classes, ignore_index, wide)
    if isinstance(count, float) and weight is None and target.data.dtype == int64:
        losses = -indexing.Gather.apply(input, target, axis=class_dim).to(wide)
        return in_dtype_of(input, _reduced(losses, reduction))
    kept = target != ignore_index
    index = target.where(kept, 0)
    scale = kept if weight is None else weight.detach().to(wide)[index].where(kept, 0.0)
    picked = input.gather(class_dim, index.unsqueeze(class_dim)).squeeze(class_dim).to(wide)
    losses = -picked.where(kept, 0.0) * scale
    return in_dtype_of(input, losses.sum() / scale.sum() if reduction == "mean" else _reduced(losses, reduction))


@of_halves
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target)^2, of equal shapes."""
    return _of_pair("mse_loss", elementwise.SquaredDistance, input, target, reduction)


@of_halves
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|input - target|, of equal shapes."""
    return _of_pair("l1_loss", elementwise.Distance, input, target, reduction)


@of_halves
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """(input - target)^2 / 2 up to a distance of ``delta`` > 0, and from there on straight, of equal shapes."""
    expect(delta > 0, "huber_loss: delta", delta, "a number above 0")
    return _of_pair("huber_loss", elementwise.Huber, input, target, reduction, float(delta))


@of_halves
def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """``huber_loss`` of ``delta=beta``, divided by beta: |input - target| - beta / 2 beyond beta; 0 is ``l1_loss``."""
    expect(beta >= 0, "smooth_l1_loss: beta", beta, "a number not below 0")
    op, numbers = (elementwise.Huber, [float(beta)]) if beta else (elementwise.Distance, [])
    loss = _of_pair("smooth_l1_loss", op, input, target, reduction, *numbers)
    return loss if beta in (0, 1) else loss / beta


@of_halves
def binary_cross_entropy(input: Tensor, target: Tensor, weight: Weight = None, reduction: str = "mean") -> Tensor:
    """-weight (target log p + (1 - target) log(1 - p)) of probabilities p = input, of equal shapes.

    ``weight`` broadcasts to the input. Logarithms count as -100 at least, as in PyTorch; where p is exactly 0 or 1, the
    one of 0 has no slope. ``binary_cross_entropy_with_logits`` is more exact. ValueError for p outside of [0, 1].
    """
    name = "binary_cross_entropy"
    _check_pair(name, input, target, reduction)
    p = floating(name, input).detach()
    if ((p < 0) | (p > 1)).any():
        raise bad_value(f"{name}: expected probabilities in [0, 1], not {p.amin().item()} to {p.amax().item()}")
    losses = combine(elementwise.BinaryCrossEntropy, input, target)
    return _reduced(losses if weight is None else losses * weight, reduction)


@of_halves
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Weight = None, reduction: str = "mean", pos_weight: Weight = None
) -> Tensor:
    """-weight (pos_weight target log p + (1 - target) log(1 - p)) with p = sigmoid(input), of equal shapes.

    ``weight`` and ``pos_weight`` broadcast to the input. Computed from the logits, so no p rounds to 0 or 1.
    """
    name = "binary_cross_entropy_with_logits"
    _check_pair(name, input, target, reduction)
    if not (input.is_floating_point() and target.is_floating_point()):
        raise bad_type(f"{name} expects floating tensors, not {input.dtype} and {target.dtype}; convert with .float()")
    positive = target if pos_weight is None else target * pos_weight
    losses = combine_three(elementwise.BinaryCrossEntropyOfLogits, input, positive, target)
    return _reduced(losses if weight is None else losses * weight, reduction)


@autocast_to_float32
def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target (log target - input): log-probabilities, and probabilities (or with ``log_target`` their logarithms).

    The sum over a distribution is its Kullback-Leibler divergence, KL(target || exp(input)). "batchmean" is the sum
    divided by the first size; "mean" divides by the number of elements, as in PyTorch.
    """
    _check_pair("kl_div", input, target, reduction, ("mean", "batchmean", "sum", "none"))
    losses = target.exp() * (target - input) if log_target else combine(elementwise.DivergenceOfLog, input, target)
    if reduction == "batchmean":
        return losses.sum() / (input.shape[0] if input.ndim else 1)
    return _reduced(losses, reduction)


def _of_pair(name: str, op: type[elementwise.Loss], x: Tensor, y: Tensor, reduction: str, *numbers: float) -> Tensor:
    _check_pair(name, x, y, reduction)
    return _reduced((combine_three if numbers else combine)(op, x, y, *numbers), reduction)


def _check_pair(name: str, input: Tensor, target: Tensor, reduction: str, known: tuple[str, ...] = REDUCTIONS) -> None:
    check_choice(name, "reduction", reduction, known)
    if input.shape != target.shape:
        raise bad_value(f"{name}: input {input.shape} and target {target.shape} differ in shape")


hints.complete(__name__, "")
hints.list_names(__name__)
