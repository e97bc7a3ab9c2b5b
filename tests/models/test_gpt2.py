"""GPT-2: size, loss, sampling, what forward and generate refuse. (What holds for every family: test_families.py.)"""

import inspect
import math

import numpy as np
import pytest
from language_models import randomised, tokens
from refusals import raises

import minigrad as mg
from minigrad import Generator, nn
from minigrad.models import GPT2, GPT2Config, generation

SMALL = GPT2Config(vocab_size=19, block_size=8, n_layer=2, n_head=2, n_embd=16)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return randomised(GPT2(SMALL))


# ---------------------------------------------------------------------- size and start


def test_the_124m_model_has_124_439_808_parameters() -> None:
    with nn.init.skip_init():  # the memory is never touched
        model = GPT2(GPT2Config())
    assert model.num_parameters() == 124_439_808
    assert model.wte.weight.shape == (50257, 768) and model.h[11].attn.c_attn.weight.shape == (2304, 768)


# ---------------------------------------------------------------------- forward


def test_sequences_of_a_batch_do_not_mix(model: GPT2) -> None:
    ids = tokens(3, 8)
    alone = [model(ids[i : i + 1]).detach().numpy()[0] for i in range(3)]
    np.testing.assert_allclose(model(ids).detach().numpy(), alone, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------- generation


def test_the_same_seed_gives_the_same_text(model: GPT2) -> None:
    ids = tokens(2, 3)
    first = model.generate(ids, 20, seed=1).tolist()
    assert model.generate(ids, 20, seed=1).tolist() == first != model.generate(ids, 20, seed=2).tolist()
    mg.manual_seed(5)
    a, b = model.generate(ids, 20).tolist(), model.generate(ids, 20).tolist()
    mg.manual_seed(5)
    assert a != b and model.generate(ids, 20).tolist() == a


def test_the_coldest_text_is_the_greedy_one(model: GPT2) -> None:
    """The largest logit is by far the likeliest where it is cold."""
    ids = tokens(2, 3)
    greedy = model.generate(ids, 10, temperature=0.0)
    for coldest in ({"temperature": 1e-6}, {"temperature": 1e-45}, {"top_k": 1}, {"top_p": 1e-9}):
        assert model.generate(ids, 10, seed=1, **coldest).tolist() == greedy.tolist()
    assert model.generate(ids, 3, temperature=1e30, seed=1).shape == (2, 6)


SAMPLINGS = [
    *((1.0, top_k, top_p, [0.1, 0.4, 0.05, 0.3, 0.15]) for top_k, top_p in ((None, None), (5, None), (50, 1.0))),
    (1.0, 2, None, [0, 0.4, 0, 0.3, 0]),
    (1.0, None, 0.5, [0, 0.4, 0, 0.3, 0]),  # 0.4 alone does not reach 0.5
    (1.0, None, 0.39, [0, 0.4, 0, 0, 0]),
    (1.0, None, 0.84, [0, 0.4, 0, 0.3, 0.15]),
    (1.0, 4, 0.8, [0, 0.4, 0, 0.3, 0.15]),  # top_p of what top_k left
    (0.5, None, None, [0.1**2, 0.4**2, 0.05**2, 0.3**2, 0.15**2]),
    (2.0, 2, None, [0, 0.4**0.5, 0, 0.3**0.5, 0]),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "kept"), SAMPLINGS)
def test_sampling_follows_the_distribution(temperature, top_k, top_p, kept) -> None:
    rows = 20_000
    logits = mg.tensor(np.log(np.tile([0.1, 0.4, 0.05, 0.3, 0.15], (rows, 1))))
    ids = generation.sample(logits, temperature, top_k, top_p, Generator(9))
    assert ids.shape == (rows, 1)
    found = np.bincount(ids.numpy()[:, 0], minlength=5) / rows
    want = np.array(kept) / sum(kept)
    assert (found[want == 0] == 0).all()
    np.testing.assert_allclose(found, want, atol=0.014)  # four deviations of the widest


def test_generation_leaves_the_model_as_it_was() -> None:
    model = GPT2(GPT2Config(**{**SMALL.__dict__, "dropout": 0.5}))
    model.train()
    model.h[0].eval()
    modes = [m.training for m in model.modules()]
    state = {n: t.numpy().copy() for n, t in model.state_dict().items()}
    a = model.generate(tokens(1, 3), 6, temperature=0.0).tolist()
    assert a == model.generate(tokens(1, 3), 6, temperature=0.0).tolist()  # dropout is off
    raises(IndexError, "", lambda: model.generate(mg.tensor([[99]]), 1))
    assert [m.training for m in model.modules()] == modes and mg.is_grad_enabled()
    assert all(np.array_equal(t.numpy(), state[n]) for n, t in model.state_dict().items())


def test_generate_takes_the_numbers_of_numpy(model: GPT2) -> None:
    ids = mg.tensor([[1, 2, 3]])
    ours = model.generate(ids, 4, temperature=0.5, top_k=3, top_p=0.75, seed=1)
    numpys = model.generate(
        ids, np.int64(4), temperature=np.float32(0.5), top_k=np.int32(3), top_p=np.float32(0.75), seed=1
    )
    assert ours.tolist() == numpys.tolist()


def test_options_of_transformers(model: GPT2) -> None:
    """What a penalty makes of tokens: test_pretrained.py, beside transformers."""
    ids = tokens(2, 3)
    copies = model.generate(ids, 9, seed=1, num_return_sequences=3)
    assert copies.tolist() == model.generate(ids.repeat_interleave(3, 0), 9, seed=1).tolist()
    assert copies.shape == (6, 12) and copies[0].tolist() != copies[1].tolist()
    free = model.generate(ids[:1], 9, do_sample=False).tolist()[0]
    both = model.generate(mg.cat([ids[:1], ids[1:]]), 9, temperature=0, eos_token_id=free[4], pad_token_id=18).tolist()
    end = free.index(free[4], 3) + 1
    assert both[0] == free[:end] + [18] * (len(both[0]) - end)
    shown = inspect.signature(GPT2.generate).parameters  # which help() shows
    assert [*shown][3:] == [*vars(generation.Sampling(0.5))] and shown["temperature"].default == 1.0


# ---------------------------------------------------------------------- learning


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_not_sampled(bad: float) -> None:
    with pytest.raises(ValueError, match="the model's logits are NaN, inf"):
        generation.sample(mg.tensor([[0.0, 1.0], [bad, 1.0]]), 1.0, None, None, None)
    assert generation.sample(mg.tensor([[-np.inf, 1.0]]), 1.0, None, None, None).tolist() == [[1]]


def test_the_loss_bypasses_neither_hooks_nor_another_forward(model: GPT2) -> None:
    rng = np.random.default_rng(0)
    tokens, targets = (mg.tensor(rng.integers(0, model.config.vocab_size, (2, 5))) for _ in range(2))
    fused = model.loss(tokens, targets)
    grads = fused.backward()
    seen = []
    with model.register_forward_hook(lambda module, args, logits: seen.append(logits.shape)):
        plain = model.loss(tokens, targets)
    assert seen == [(2, 5, model.config.vocab_size)]
    assert fused.item() == pytest.approx(plain.item(), rel=1e-5)
    expected = plain.backward()
    for parameter in model.parameters():
        np.testing.assert_allclose(grads[parameter].numpy(), expected[parameter].numpy(), rtol=1e-3, atol=1e-5)
    model.forward = lambda tokens: 0 * type(model).forward(model, tokens)
    assert model.loss(tokens, targets).item() == pytest.approx(math.log(model.config.vocab_size), rel=1e-5)
