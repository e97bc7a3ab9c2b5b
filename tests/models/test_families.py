"""GPT2 and Llama alike: initial weights, causality, caches, generation, names, and what is Llama's."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from gpt_training import STEPS, train_minigrad
from language_models import PLANS_RUN, VOCAB, randomised, tokens
from refusals import raises

import minigrad as mg
from minigrad import Generator, Tensor, nn
from minigrad.models import GPT2, CausalLM, GPT2Config, Llama, LlamaConfig, RopeScaling, generation

BLOCK = 10
SMALL = {
    GPT2: GPT2Config(VOCAB, BLOCK, n_layer=2, n_head=2, n_embd=16),
    Llama: LlamaConfig(
        VOCAB, BLOCK, 2, 4, 2, 16, 12, head_dim=6, rope_base=20.0, rope_scaling=RopeScaling("llama3", 4.0, 1.0, 2.0, 8),
        attention_bias=True, mlp_bias=True, tied=False,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=SMALL)
def family(request: pytest.FixtureRequest):
    return request.param


@pytest.fixture(scope="module")
def model(family) -> CausalLM:
    made: CausalLM = randomised(family(SMALL[family]))
    return made


def changed(family, **sizes):
    """The family's small configuration with other sizes."""
    return type(SMALL[family])(**{**vars(SMALL[family]), **sizes})


# ---------------------------------------------------------------------- sizes and start


def test_initial_weights(family) -> None:
    config = changed(family, vocab_size=300, block_size=100, n_layer=8, n_embd=64, n_inner=96)
    mg.manual_seed(0)
    model = family(config)
    for name, p in model.named_parameters():
        v = p.detach().numpy()
        if p.ndim == 1:
            assert (v == (not name.endswith("bias"))).all(), name
            continue
        std = 0.02 / 4 if name.endswith(("c_proj.weight", "o_proj.weight", "down_proj.weight")) else 0.02
        assert abs(v.mean()) < 4 * std / math.sqrt(v.size), name
        assert abs(v.std() / std - 1) < 4 / math.sqrt(2 * v.size), name
    loss = model.loss(mg.randint(0, 300, (2, 9)), mg.randint(0, 300, (2, 9)))
    assert loss.shape == () and loss.item() == pytest.approx(math.log(300), abs=0.1)
    mg.manual_seed(0)
    assert all(np.array_equal(p.data, q.data) for p, q in zip(model.parameters(), family(config).parameters()))


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_is_the_embedding_if_tied(family, tied: bool) -> None:
    model, ids = family(changed(family, tied=tied)), tokens(1, 4)
    grads = model.loss(ids, ids).backward()
    assert len(grads) == len(list(model.parameters()))
    unused = sorted(set(range(VOCAB)) - set(ids.tolist()[0]))
    assert grads[model.embedding.weight].numpy()[unused].any() == tied  # through the head alone


# ---------------------------------------------------------------------- forward and backward


def test_causality(model: CausalLM) -> None:
    """Logits of the first 5 tokens do not depend on the others; those of the others do."""
    ids = tokens(2, BLOCK)
    other = ids.clone()
    other[:, 5:] = (ids[:, 5:] + 1) % VOCAB
    a, b = model(ids).detach().numpy(), model(other).detach().numpy()
    np.testing.assert_array_equal(a[:, :5], b[:, :5])
    assert (a[:, 5:] != b[:, 5:]).any(-1).all()
    np.testing.assert_allclose(model(ids[:, :3]).detach().numpy(), a[:, :3], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prompt", [1, 5, BLOCK])
def test_logits_with_a_cache_are_those_without(family, model: CausalLM, prompt: int) -> None:
    ids = tokens(2, BLOCK)
    want = model(ids).detach().numpy()
    with mg.no_grad():
        caches = model.new_caches(2)
        parts = [model(ids[:, :prompt], caches)] + [model(ids[:, t : t + 1], caches) for t in range(prompt, BLOCK)]
        np.testing.assert_allclose(mg.cat(parts, dim=1).numpy(), want, rtol=1e-11, atol=1e-11)
        message = f"{family.__name__}: 11 tokens, but block_size is 10"
        raises(ValueError, message, lambda: model(ids[:, :1], caches))
        small = model.new_caches(1, 3)  # the room that is asked for
        model(tokens(1, 3), small)
        raises(ValueError, "KVCache holds 3 tokens", lambda: model(tokens(1, 1), small))


def test_gradients_of_the_whole_model(family) -> None:
    sizes = {"n_kv_head": 1, "n_inner": 3, "head_dim": 2} if family is Llama else {}
    model = randomised(family(changed(family, vocab_size=5, block_size=3, n_layer=1, n_head=2, n_embd=4, **sizes)))
    ids, targets = mg.tensor([[1, 4, 1], [0, 2, 2]]), mg.tensor([[4, 1, 3], [2, 2, 0]])
    assert mg.gradcheck(lambda *_: model.loss(ids, targets), list(model.parameters()))


# ---------------------------------------------------------------------- generation


def recomputed(model: CausalLM, ids: Tensor, n: int, seed: int = 0, temperature: float = 1.0, **options) -> Tensor:
    """Generation without a cache: the whole window again for every token."""
    generator = Generator(seed)
    with mg.no_grad():
        for _ in range(n):
            logits = model(ids[:, -BLOCK:])[:, -1]
            ids = mg.cat([ids, generation.sample(logits, temperature, options.get("top_k"), None, generator)], dim=1)
    return ids


@pytest.mark.parametrize("T", [1, 5, BLOCK, 13])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"seed": 3}, {"seed": 3, "top_k": 4, "temperature": 2.0}])
def test_generation_is_recomputation_also_beyond_the_window(model: CausalLM, T: int, options) -> None:
    ids = tokens(3, T)
    found = model.generate(ids, 14, **options)
    assert found.shape == (3, T + 14) and found.dtype == mg.int64
    assert found[:, :T].tolist() == ids.tolist() == model.generate(ids, 0).tolist()
    assert found.tolist() == recomputed(model, ids, 14, **options).tolist()


def test_a_stream_is_the_same_tokens(model: CausalLM) -> None:
    ids = tokens(2, 3)
    pieces = list(generation.stream(model, ids, 9, seed=4, top_k=7))
    assert [p.shape for p in pieces] == [(2, 1)] * 9
    assert mg.cat([ids, *pieces], dim=1).tolist() == model.generate(ids, 9, seed=4, top_k=7).tolist()
    model.train()
    tokens_left_over = generation.stream(model, ids, 9, seed=4)
    next(tokens_left_over)
    tokens_left_over.close()  # type: ignore[attr-defined]  # a generator
    assert all(module.training for module in model.modules())  # as it was
    model.eval()


def test_sequences_end_with_the_end_token(model: CausalLM) -> None:
    ids = tokens(3, 3, seed=2)
    free = model.generate(ids, 40, seed=6).numpy()

    def lengths(ends: list[int]) -> list[int]:
        """Up to and with the first end token; the whole text without one."""
        places = [np.flatnonzero(np.isin(row[3:], ends)) for row in free]
        return [3 + int(p[0]) + 1 if len(p) else 43 for p in places]

    ends = next(e for e in ([a, b] for a in range(19) for b in range(a)) if len(set(lengths(e))) == 3)
    found = model.generate(ids, 40, seed=6, eos_token_id=ends).numpy()
    assert found.shape[1] == max(lengths(ends))
    for row, want, n in zip(found, free, lengths(ends), strict=True):
        assert row[:n].tolist() == want[:n].tolist()
        assert (row[n:] == row[n - 1]).all()  # filled up with the token that ended it
    alone = model.generate(ids[:1], 40, temperature=0)
    one = int(alone[0, 5])
    end = 3 + alone.tolist()[0][3:].index(one)
    assert model.generate(ids[:1], 40, temperature=0, eos_token_id=one).tolist() == alone[:, : end + 1].tolist()


@mg.no_grad()
def test_names_of_a_subclass_are_the_users(family) -> None:
    class Classifier(family):
        def __init__(self, config) -> None:
            super().__init__(config)
            for name in ("head", "trunk", "features", "embed", "through"):
                setattr(self, name, nn.Linear(16, 3))

    ids, found = tokens(1, 3), []
    for kind in (family, Classifier):
        mg.manual_seed(0)
        model = kind(SMALL[family])
        found.append([model(ids).tolist(), model.loss(ids, ids).item(), model.generate(ids, 4, temperature=0).tolist()])
    assert found[0] == found[1] and "head.weight" in model.state_dict()


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


GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "gpt_training.json").read_text())


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("float64", 1e-9)])
def test_the_curves_are_pytorchs(dtype: str, tolerance: float) -> None:
    """As tests/golden/make_gpt_training.py has stored them."""
    found, want = train_minigrad(dtype), GOLDEN[dtype]
    losses, norms = found["losses"], found["grad_norms"]
    assert len(losses) == STEPS
    np.testing.assert_allclose(losses, want["losses"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(norms, want["grad_norms"], rtol=10 * tolerance, atol=0)
    # It learns and it clips: otherwise the comparison would say little.
    assert losses[-1] < 0.6 * losses[0] and max(norms) > 1 > min(norms)
