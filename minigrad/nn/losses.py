"""Losses. ``nn.functional`` has them under the same names."""

from __future__ import annotations

from ..ops import cross_entropy as cross_entropy_ops
from ..tensor import Tensor
from .checks import check_reduction, float32_or_64, reduced


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(input)[target]: input (N, C) or (C,) or (N, C, d1, ...), target of class indices (N, d1, ...).

    ``weight`` (C,) scales each class; targets equal to ``ignore_index`` count for nothing; ``label_smoothing`` s mixes
    the target with s / C of every class. The mean is over the targets' weights; of no target at all it is NaN.
    Raises TypeError for targets that are not integers, IndexError naming a target out of range.
    """
    check_reduction("cross_entropy", reduction)
    if target.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy: targets are class indices, not {target.dtype}; convert with .long()")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing={label_smoothing}; expected [0, 1]")
    class_dim = 0 if input.ndim == 1 else 1
    expected = input.shape[:class_dim] + input.shape[class_dim + 1 :]
    if not input.ndim or target.shape != expected:
        raise ValueError(
            f"cross_entropy: input {input.shape}, target {target.shape}; expected input (N, C) with target (N,), "
            "so for (B, T, C) logits: cross_entropy(logits.view(-1, C), targets.view(-1))"
        )
    classes = input.shape[class_dim]
    if weight is not None and weight.shape != (classes,):
        raise ValueError(f"cross_entropy: weight of shape {weight.shape}; expected ({classes},)")
    logits = input if class_dim == input.ndim - 1 else _channels_last(input)
    logits = logits.reshape(-1, classes) if input.numel() else logits.reshape(target.numel(), classes)
    k = input.device.kernels
    labels = target.reshape(-1).long()
    bad = k.cross_entropy.check_targets(labels.data, classes, ignore_index)
    if bad >= 0:
        raise IndexError(
            f"cross_entropy: target {int(labels[bad])} at position {bad} is out of range for {classes} classes "
            f"(ignore_index is {ignore_index})"
        )
    class_weight = None if weight is None else k.copy(weight.to(input.dtype).data)  # which may change before backward
    options = (ignore_index, label_smoothing, class_weight)
    losses = cross_entropy_ops.CrossEntropy.apply(float32_or_64("cross_entropy", logits), labels, options=options)
    if reduction == "none":
        return losses.reshape(target.shape)
    if reduction == "sum":
        return losses.sum()
    kept = labels != ignore_index
    if weight is None:
        return losses.sum() / float(kept.sum().item())
    return losses.sum() / weight.detach().to(input.dtype)[labels.where(kept, 0)].where(kept, 0.0).sum()


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, *range(2, x.ndim), 1)


def nll_loss(input: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """-input[target]: log-probabilities (N, C), class indices (N,)."""
    check_reduction("nll_loss", reduction)
    if input.ndim != 2 or target.shape != input.shape[:1]:
        raise ValueError(f"nll_loss: input {input.shape}, target {target.shape}; expected (N, C) and (N,)")
    kept = target != ignore_index
    picked = -input.gather(1, target.where(kept, 0).unsqueeze(1)).squeeze(1).where(kept, 0.0)
    if reduction == "mean":
        return picked.sum() / float(kept.sum().item())
    return picked.sum() if reduction == "sum" else picked


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target)^2, of equal shapes."""
    check_reduction("mse_loss", reduction)
    if input.shape != target.shape:
        raise ValueError(f"mse_loss: input {input.shape} and target {target.shape} differ in shape")
    losses = (input - target).square()
    return reduced(losses, reduction)
