"""What the tests of GPT-2 and Llama share: weights, token ids, and properties of every language model."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

import minigrad as mg
from minigrad import Generator, Tensor
from minigrad.models import CausalLM
from minigrad.optim import AdamW

VOCAB = 19
Model = TypeVar("Model", bound=CausalLM)


def randomised(model: Model) -> Model:
    """float64, with large random weights, so that its choices are not all alike."""
    model.to(mg.float64).eval()
    rng = np.random.default_rng(0)
    model.load_state_dict({n: rng.standard_normal(t.shape) * 0.5 for n, t in model.state_dict().items()})
    return model


def tokens(B: int, T: int, seed: int = 0) -> Tensor:
    """Random ids (B, T)."""
    return mg.randint(0, VOCAB, (B, T), generator=Generator(seed))


def assert_causal(model: CausalLM, T: int) -> None:
    """Logits of the first 5 of ``T`` tokens do not depend on the others; those of the others do."""
    ids = tokens(2, T)
    changed = ids.clone()
    changed[:, 5:] = (ids[:, 5:] + 1) % VOCAB
    a, b = model(ids).detach().numpy(), model(changed).detach().numpy()
    np.testing.assert_array_equal(a[:, :5], b[:, :5])
    assert (a[:, 5:] != b[:, 5:]).any(-1).all()


def assert_learns_by_heart(model: CausalLM, ids: Tensor) -> None:
    """After 80 steps on the batch it writes each sequence of ids (B, T) from its first token."""
    optimizer = AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(80):
        loss = model.loss(ids[:, :-1], ids[:, 1:])
        optimizer.step(loss.backward())
        losses.append(loss.item())
    assert losses[0] > 2.5 and losses[-1] < 0.02
    assert model.generate(ids[:, :1], ids.shape[1] - 1, temperature=0.0).tolist() == ids.tolist()
