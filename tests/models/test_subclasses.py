"""A user's subclass of a model may name its modules as it likes."""

from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.models import GPT2, GPT2Config, Llama, LlamaConfig

SIZES = {"vocab_size": 16, "block_size": 8, "n_layer": 1, "n_head": 2, "n_embd": 16}


@pytest.mark.parametrize(("base", "config"), [(GPT2, GPT2Config(**SIZES)), (Llama, LlamaConfig(n_kv_head=2, **SIZES))])
@mg.no_grad()
def test_names_of_modules_are_the_users(base, config):
    class Classifier(base):
        def __init__(self) -> None:
            super().__init__(config)
            for name in ("head", "trunk", "features", "embed", "through"):
                setattr(self, name, nn.Linear(16, 3))

    mg.manual_seed(0)
    plain = base(config)
    mg.manual_seed(0)
    model, tokens = Classifier(), mg.tensor([[1, 2, 3]])
    assert type(model.head) is nn.Linear and "head.weight" in model.state_dict()
    np.testing.assert_array_equal(model(tokens).numpy(), plain(tokens).numpy())
    assert float(model.loss(tokens, tokens)) == float(plain.loss(tokens, tokens))
    np.testing.assert_array_equal(
        model.generate(tokens, 4, temperature=0).numpy(), plain.generate(tokens, 4, temperature=0).numpy()
    )


@mg.no_grad()
def test_a_residual_is_added_to_the_result():
    x, r = mg.ones(2, 3, 8), mg.full((2, 3, 8), 2.0)
    for module in (nn.MLP(8), nn.SelfAttention(8, 2)):
        np.testing.assert_array_equal(module(x, residual=r).numpy(), (r + module(x)).numpy())
