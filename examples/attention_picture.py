"""What a GPT looks at while it reads a text: a picture of each head's attention, and of the learned positions."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from command_line import UsageError

import minigrad
from minigrad.models import GPT2

TOKENS = 32  # of the text's end, that fit beside each other


def attention(model: GPT2, tokens: list[int]) -> list[np.ndarray]:
    """Of each layer the shares (heads, T, T) with which a token, a row, looks at itself and those before it."""
    found = []

    def note(layer: Any, inputs: tuple[Any, ...]) -> None:
        _, T, C = inputs[0].shape
        size = C // layer.n_head
        q, k, _ = (x.transpose(0, 1) for x in layer.c_attn(inputs[0]).reshape(T, 3, layer.n_head, size).unbind(1))
        later = minigrad.ones(T, T, dtype=minigrad.bool_, device=model.device).triu(1)
        shares = (q @ k.mT / math.sqrt(size)).masked_fill(later, -math.inf).softmax(-1)
        found.append(shares.cpu().numpy())

    hooks = [block.attn.register_forward_pre_hook(note) for block in model.h]
    with minigrad.no_grad():
        model.eval()(minigrad.tensor([tokens], device=model.device))
    for hook in hooks:
        hook.remove()
    return found


def figure_class() -> Any:
    """Matplotlib's; UsageError where it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("--attention needs matplotlib: pip install matplotlib") from None
    return Figure


def draw(model: Any, tokens: list[int], characters: list[str], file: Path) -> None:
    """The attention over the last tokens, a row of pictures for each layer, and below it the position embeddings."""
    if not isinstance(model, GPT2):
        raise UsageError(f"--attention is for GPT-2's heads, not for a {type(model).__name__}")
    tokens, characters = tokens[-TOKENS:], characters[-TOKENS:]
    layers = attention(model, tokens)
    heads = len(layers[0])
    figure = figure_class()(figsize=(4 * heads, 4 * len(layers) + 3), layout="constrained")
    cells = figure.add_gridspec(len(layers) + 1, heads)
    for i, shares in enumerate(layers):
        for j, head in enumerate(shares):
            axes = figure.add_subplot(cells[i, j])
            axes.imshow(head, cmap="Blues", vmin=0)
            axes.set_title(f"layer {i}, head {j}", fontsize=9)
            axes.set_xticks(range(len(characters)), characters, fontsize=6)
            axes.set_yticks(range(len(characters)), characters, fontsize=6)
    axes = figure.add_subplot(cells[len(layers), :])
    axes.imshow(model.wpe.weight.detach().cpu().numpy(), cmap="coolwarm", aspect="auto")
    axes.set(title="position embeddings", xlabel="channel", ylabel="position")
    figure.savefig(file, dpi=100)
