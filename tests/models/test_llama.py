"""Llama: sizes and rotary scaling. (What holds for every family is in test_families.py, transformers' numbers are in
test_pretrained.py.)"""

import math

import numpy as np
from language_models import PLANS_RUN

import minigrad as mg
from minigrad import nn
from minigrad.models import Llama, LlamaConfig, RopeScaling

# ---------------------------------------------------------------------- size and start


def test_weights_that_are_not_drawn_use_no_random_numbers() -> None:
    mg.manual_seed(1)
    before = mg.default_generator.state_dict()
    with nn.init.skip_init():
        Llama(LlamaConfig(19, 10, 1, 2, 1, 8, 8))
    assert mg.default_generator.state_dict() == before
    Llama(LlamaConfig(19, 10, 1, 2, 1, 8, 8))
    assert mg.default_generator.state_dict() != before


# ---------------------------------------------------------------------- forward


def test_rope_frequencies() -> None:
    """Llama 3.1's rule, written as in its paper's code: by wavelength."""
    config = LlamaConfig(head_dim=64, rope_base=5e5, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 8192))
    f = 5e5 ** (-np.arange(32) / 32)
    wavelength = 2 * math.pi / f
    smooth = (8192 / wavelength - 1) / (4 - 1)
    kept, lowered = wavelength < 8192 / 4, wavelength > 8192 / 1
    assert kept.any() and lowered.any() and not (kept | lowered).all()  # and some are blended
    want = np.where(kept, f, np.where(lowered, f / 8, (1 - smooth) * f / 8 + smooth * f))
    np.testing.assert_allclose(config.rope_frequencies, want, rtol=1e-12)
    plain = LlamaConfig(head_dim=64, rope_base=5e5).rope_frequencies
    linear = LlamaConfig(head_dim=64, rope_base=5e5, rope_scaling=RopeScaling("linear", 4.0)).rope_frequencies
    np.testing.assert_allclose(linear, np.array(plain) / 4, rtol=1e-15)


@mg.no_grad()
def test_a_sliding_window_is_no_graph_unless_the_cache_is_shorter() -> None:
    model = Llama(LlamaConfig(19, 10, 1, 2, 1, 8, 8, sliding_window=4)).eval()
    for room, words in (
        (4, "forward runs as 'decode'"),
        (5, "not as 'decode': the attention slides over fewer tokens"),
    ):
        model(mg.tensor([[1, 2]]), caches := model.new_caches(1, room))
        assert not PLANS_RUN or words in str(mg.explain(model, mg.tensor([[3]]), caches))
    ids = mg.tensor([[1, 2, 3, 4, 5, 6, 7]])
    changed = mg.tensor([[1, 2, 9, 4, 5, 6, 7]])
    differs = (model(ids) != model(changed)).any(-1).tolist()[0]
    assert differs == [False, False, True, True, True, True, False]  # a window of four, one layer
