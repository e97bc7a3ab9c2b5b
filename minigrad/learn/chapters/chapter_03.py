"""Chapter 3: modules. Parameters with names, first weights, a loss, an optimizer, and a classifier."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .chapter_02 import Array, GradStore, Op, Tensor


class Module:
    """A part of a network: its parameters are its attributes, and those of the modules in it."""

    forward: Callable[..., Tensor]

    def __call__(self, *inputs: Any) -> Tensor:
        """Compute."""
        return self.forward(*inputs)

    def named_parameters(self) -> dict[str, Tensor]:
        """All parameters below, by name: ``{"weight": ..., "layers.0.bias": ...}``.

        A parameter is a Tensor that needs gradients. They are found in the attributes (``vars(self)``), in modules
        among them, and in lists of modules; a module in a list has its place as its name. A tensor that is there twice
        is listed once, under the first name.
        """
        found: dict[str, Tensor] = {}  # given
        for name, value in vars(self).items():
            parts = {f"{name}.{k}": part for k, part in enumerate(value)} if isinstance(value, list) else {name: value}
            for path, part in parts.items():
                below: dict[str, Tensor] = {}
                if isinstance(part, Module):
                    below = {f"{path}.{inner}": p for inner, p in part.named_parameters().items()}
                elif isinstance(part, Tensor) and part.requires_grad:
                    below = {path: part}
                for full, p in below.items():
                    if all(p is not q for q in found.values()):
                        found[full] = p
        return found  # given

    def parameters(self) -> list[Tensor]:
        """All parameters below."""
        return list(self.named_parameters().values())


def first_weights(rng: np.random.Generator, outputs: int, inputs: int) -> Array:
    """Normal random numbers of shape (outputs, inputs), with mean 0 and variance 1 / inputs, drawn from ``rng``."""
    return rng.normal(size=(outputs, inputs)) / np.sqrt(inputs)


class Linear(Module):
    """y = x Wᵀ + b, for x of shape (..., inputs) and y of shape (..., outputs)."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        """Parameters ``weight`` of shape (outputs, inputs), from ``first_weights``, and ``bias``, zeros."""
        self.weight = Tensor(first_weights(rng, outputs, inputs), requires_grad=True)
        self.bias = Tensor(np.zeros(outputs), requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        """The result, a Tensor: its operations are those of chapter 2."""
        return x @ self.weight.transpose(1, 0) + self.bias


class Relu(Op):
    """z = x where x > 0, else 0."""

    def forward(self, x: Array) -> Array:
        """x where it is positive, else 0. Keep in ``self`` where that was."""
        self.positive = x > 0
        return x * self.positive

    def backward(self, dz: Array) -> Array:
        """dx: dz passes where x was positive."""
        return dz * self.positive


class CrossEntropy(Op):
    """The mean over rows of -log p[target], where p = softmax(row); for logits of shape (rows, classes)."""

    def __init__(self, targets: Array) -> None:
        self.targets = targets

    def forward(self, logits: Array) -> Array:
        """The loss, of shape (), from log p = x - log(sum(exp(x))) for each row x.

        Logits of 1000 must not overflow: subtract the largest of each row first. Keep p for ``backward``.
        """
        shifted = logits - logits.max(axis=1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        self.p = np.exp(logs)
        return -logs[np.arange(len(logs)), self.targets].mean()

    def backward(self, dz: Array) -> Array:
        """dlogits = dz (p - 1 at the target) / rows."""
        grad = self.p.copy()
        grad[np.arange(len(grad)), self.targets] -= 1.0
        return dz * grad / len(grad)


def clip(parameters: Sequence[Tensor], grads: GradStore, limit: float) -> float:
    """Scale all gradients, in the store, by one factor, so that their common norm is at most ``limit``.

    The norm is the root of the sum of the squares of all elements of all gradients. Returns the norm before. Gradients
    within the limit stay as they are.
    """
    norm = float(np.sqrt(sum(np.sum(grads[p] ** 2) for p in parameters)))
    if norm > limit:
        for p in parameters:
            grads.grads[p.number] *= limit / norm
    return norm


class AdamW:
    """The optimizer AdamW: steps of even size, and weights that decay."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, decay: float = 0.01) -> None:
        self.parameters, self.lr, self.decay = list(parameters), lr, decay
        self.beta1, self.beta2, self.eps = 0.9, 0.95, 1e-8
        self.steps = 0
        self.m = [np.zeros(p.shape) for p in self.parameters]  # the running mean of the gradient
        self.v = [np.zeros(p.shape) for p in self.parameters]  # the running mean of its square

    def step(self, grads: GradStore) -> None:
        """For each parameter p with gradient g, at step t = 1, 2, ... (count it in ``self.steps``):

        m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g²
        p = p - lr (m' / (√v' + eps) + decay p)  with m' = m / (1 - beta1ᵗ) and v' = v / (1 - beta2ᵗ)

        Give ``p.data`` a new array.
        """
        self.steps += 1
        for k, p in enumerate(self.parameters):
            g = grads[p]
            self.m[k] = self.beta1 * self.m[k] + (1 - self.beta1) * g
            self.v[k] = self.beta2 * self.v[k] + (1 - self.beta2) * g * g
            m = self.m[k] / (1 - self.beta1**self.steps)
            v = self.v[k] / (1 - self.beta2**self.steps)
            p.data = p.data - self.lr * (m / (np.sqrt(v) + self.eps) + self.decay * p.data)
