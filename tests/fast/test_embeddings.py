"""The embeddings of tokens and their places as one operation: the bits of the operations one by one, and when it is not
one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_cases import operations
from harness import Op, every_check, host, integers, torch, uniform
from refusals import raises

import minigrad as mg
from minigrad import nn
from minigrad.models import GPT2, GPT2Config

MODEL = GPT2(GPT2Config(vocab_size=1, block_size=1, n_layer=1, n_head=1, n_embd=1))


def embed(tokens: mg.Tensor, start: int, wte: nn.Embedding, wpe: nn.Embedding) -> mg.Tensor:
    MODEL.wte, MODEL.wpe = wte, wpe
    return MODEL._embed(tokens, start)


def with_tables(w: mg.Tensor, p: mg.Tensor) -> tuple[nn.Embedding, nn.Embedding]:
    """Modules that look up in these tensors themselves: assigned to a module, they would have to be Parameters."""
    modules = nn.Embedding(1, 1), nn.Embedding(1, 1)
    for module, table in zip(modules, (w, p), strict=True):
        vars(module).update(weight=table)
    return modules


OPS = [
    Op(
        f"positioned_embedding from {start}",
        lambda w, i, p, start=start: embed(i, start, *with_tables(w, p)),
        lambda w, i, p, start=start: w[i] + p[start : start + i.shape[1]],
        lambda w, i, p, start=start: (
            torch.nn.functional.embedding(i, w)
            + torch.nn.functional.embedding(torch.arange(start, start + i.shape[1], device=i.device), p)
        ),
        [((5, 3), (2, 4), (4 + start, 3)), ((5, 40), (3, 7), (9 + start, 40)), ((2, 1), (1, 1), (1 + start, 1))],
        (uniform(-2, 2), integers(0, 2), uniform(-2, 2)),
        rounding=64,
        refuses=("int64", "int32", "uint8", "bool"),
    )
    for start in (0, 2)
]


test_op = every_check(OPS)


def tables(V: int, rows: int, C: int, dtype: str = "float32") -> tuple[nn.Embedding, nn.Embedding]:
    mg.manual_seed(0)
    return nn.Embedding(V, C, dtype=dtype), nn.Embedding(rows, C, dtype=dtype)


def tokens_of(V: int, B: int, T: int) -> mg.Tensor:
    return mg.tensor(np.random.default_rng(1).integers(0, V, (B, T)))


def results(x: mg.Tensor, dy: mg.Tensor, *leaves: mg.Tensor) -> list[np.ndarray]:
    grads = (x * dy).sum().backward()
    return [host(x), *(grads[leaf].numpy() for leaf in leaves if leaf in grads)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("trained", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(("B", "T", "rows", "C", "start"), [(1, 1, 1, 1, 0), (3, 4, 9, 5, 2), (70, 33, 33, 48, 0)])
def test_bits_are_those_of_the_operations_one_by_one(B, T, rows, C, start, trained, dtype):
    wte, wpe = tables(7, rows, C, dtype)
    wte.weight.requires_grad, wpe.weight.requires_grad = trained
    tokens = tokens_of(7, B, T)
    dy = mg.tensor(np.random.default_rng(2).standard_normal((B, T, C)), dtype=dtype)
    x = embed(tokens, start, wte, wpe)
    assert "PositionedEmbedding" in operations(x)
    ours = results(x, dy, wte.weight, wpe.weight)
    with mg.unfused("embeddings"):
        x = embed(tokens, start, wte, wpe)
        assert "PositionedEmbedding" not in operations(x)
        expected = results(x, dy, wte.weight, wpe.weight)
    assert len(ours) == len(expected) == 1 + sum(trained)
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_gradients_are_added_to_those_of_other_uses():
    """The head of GPT-2 is the token embedding, whose gradient is there before; a table of both kinds gets both."""
    wte, wpe = tables(6, 5, 4)
    tokens = tokens_of(6, 3, 5)

    def gradients() -> list[np.ndarray]:
        x = embed(tokens, 0, wte, wpe)
        logits = x @ wte.weight.T
        return results((logits * logits).sum() + (wpe.weight * 3).sum(), mg.ones(()), wte.weight, wpe.weight)

    ours = gradients()
    with mg.unfused("embeddings"):
        for a, b in zip(ours, gradients(), strict=True):
            np.testing.assert_array_equal(a, b)
    shared = nn.Embedding(6, 4)
    x = embed(tokens, 1, shared, shared)
    grad = x.sum().backward()[shared.weight].numpy()
    expected = np.bincount(tokens.numpy().ravel(), minlength=6) + np.array([0, 3, 3, 3, 3, 3])
    np.testing.assert_array_equal(grad, np.repeat(expected[:, None], 4, 1))


def hooked(wte: nn.Embedding, wpe: nn.Embedding) -> None:
    wpe.register_forward_hook(lambda module, args, y: y * 2)


def padded(wte: nn.Embedding, wpe: nn.Embedding) -> None:
    wte.padding_idx = 0


def half(wte: nn.Embedding, wpe: nn.Embedding) -> None:
    wte.half()
    wpe.half()


def mixed(wte: nn.Embedding, wpe: nn.Embedding) -> None:
    wpe.double()


def assigned(wte: nn.Embedding, wpe: nn.Embedding) -> None:
    wte.forward = lambda tokens: nn.Embedding.forward(wte, tokens) * 3


class Own(nn.Embedding):
    """Of another class."""


def of_another_class(wte: nn.Embedding, wpe: nn.Embedding) -> None:
    object.__setattr__(wpe, "__class__", Own)


@pytest.mark.parametrize("change", [hooked, padded, half, mixed, assigned, of_another_class])
def test_modules_that_were_changed_are_called(change: Callable[[Any, Any], None]):
    wte, wpe = tables(5, 4, 3)
    change(wte, wpe)
    tokens = tokens_of(5, 2, 4)
    x = embed(tokens, 0, wte, wpe)
    assert "PositionedEmbedding" not in operations(x)
    expected = wte(tokens) + wpe(mg.arange(4))
    np.testing.assert_array_equal(host(x), host(expected))


def test_within_detect_anomaly_operations_are_apart():
    with mg.detect_anomaly():
        assert "PositionedEmbedding" not in operations(embed(tokens_of(5, 2, 4), 0, *tables(5, 4, 3)))


def test_what_it_refuses():
    wte, wpe = tables(5, 4, 3)
    with pytest.raises(IndexError, match="index 7 at position 1 is out of range for 5 rows"):
        embed(mg.tensor([[0, 7]]), 0, wte, wpe)
    raises(TypeError, "indices must be integers", lambda: embed(mg.tensor([[0.0, 1.0]]), 0, wte, wpe))
    raises(IndexError, "out of range for 4 rows", lambda: embed(tokens_of(5, 1, 3), 2, wte, wpe))
