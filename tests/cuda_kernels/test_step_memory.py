"""What a step in bfloat16 keeps on a device with tensor cores: as predicted, and as its allocator says."""

from __future__ import annotations

import numpy as np

import minigrad
from minigrad.models import GPT2, GPT2Config, gpt2_memory
from minigrad.tools.step_memory import memory_report


def test_a_step_of_gpt2_in_bfloat16_keeps_what_is_predicted() -> None:
    config = GPT2Config(128, 8, 1, 1, 8)
    model = GPT2(config)
    model.to("cuda")
    tokens = np.random.default_rng(0).integers(0, 128, (2, 1, 8))
    x, y = (minigrad.tensor(t, device="cuda") for t in tokens)

    def loss() -> minigrad.Tensor:
        with minigrad.autocast("cuda", minigrad.bfloat16):
            return model.loss(x, y)

    report, expected = memory_report(model, loss), gpt2_memory(config, 1, dtype=minigrad.bfloat16, moments=0)
    assert report.activations == expected.activations
    for kind in ("weights", "gradients", "weight_copies", "optimizer"):
        assert getattr(report, kind) == getattr(expected, kind), kind
    assert 0.5 * expected.temporary < report.temporary < 2 * expected.temporary  # an estimate
