"""A token as the launch of a graph: the logits of the modules, and the modules themselves wherever these differ."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from language_models import randomised, tokens
from refusals import raises

import minigrad as mg
from minigrad import Tensor, nn
from minigrad.cpu_kernels import attention
from minigrad.fast.decode import Decode
from minigrad.models import GPT2, CausalLM, GPT2Config, Llama, LlamaConfig, generation

GPT = GPT2Config(vocab_size=19, block_size=10, n_layer=2, n_head=3, n_embd=72)
LLAMA = LlamaConfig(19, 10, n_layer=2, n_head=6, n_kv_head=2, n_embd=36, n_inner=50, head_dim=8, rope_base=100.0)


def gpt2(**changes: Any) -> CausalLM:
    return randomised(GPT2(GPT2Config(**{**vars(GPT), **changes})))


def gpt2_with_erf() -> CausalLM:
    model = gpt2(n_layer=1)
    model.h[0].mlp.gelu = nn.GELU()
    return model


def llama(**changes: Any) -> CausalLM:
    return randomised(Llama(LlamaConfig(**{**vars(LLAMA), **changes})))


MODELS: dict[str, Callable[[], CausalLM]] = {
    "gpt2": gpt2,
    "gpt2 without bias": lambda: gpt2(bias=False, tied=False, n_inner=45, eps=0.1),
    "gpt2 with erf": gpt2_with_erf,
    "llama": llama,
    "llama with bias": lambda: llama(attention_bias=True, mlp_bias=True, tied=False, eps=0.1, n_kv_head=6),
    "llama with one head of keys": lambda: llama(n_layer=1, n_kv_head=1),
}


def by_graph(model: CausalLM, ids: Tensor, caches: list[nn.KVCache]) -> bool:
    return not [*Decode().reasons(model, ids, caches)]


def decoded(model: CausalLM, ids: Tensor, caches: list[nn.KVCache]) -> np.ndarray:
    """The logits of ids (B, T), token by token; all but the first of a graph."""
    with mg.no_grad():
        logits = [model(ids[:, t : t + 1], caches) for t in range(ids.shape[1])]
        assert by_graph(model, ids[:, :1], caches) != (caches[0].length == caches[0].max_tokens)
    assert caches[0].decoder.graphed.graphs == 1
    return mg.cat(logits, dim=1).numpy()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("B", "prompt"), [(1, 0), (2, 4), (3, 1)])
def test_a_launch_computes_what_the_modules_do(name: str, B: int, prompt: int) -> None:
    model, ids = MODELS[name](), tokens(B, 10)
    want = model(ids).detach().numpy()
    for dtype, rtol in ((mg.float64, 1e-11), (mg.float32, 1e-3)):
        model.to(dtype)
        caches = model.new_caches(B)
        with mg.no_grad():
            if prompt:
                model(ids[:, :prompt], caches)
        found = decoded(model, ids[:, prompt:], caches)
        assert found.dtype == dtype and [cache.length for cache in caches] == [10] * len(caches)
        np.testing.assert_allclose(found, want[:, prompt:], rtol=rtol, atol=rtol * abs(want).max())


@pytest.mark.parametrize("n_embd", [96, 54])
def test_bits_do_not_depend_on_threads(n_embd: int, monkeypatch: pytest.MonkeyPatch, set_threads: Any) -> None:
    monkeypatch.setattr(attention, "PARALLEL_CACHE", 1)
    model, ids, before = gpt2(n_embd=n_embd).float(), tokens(3, 10), mg.get_num_threads()
    found = []
    for count in (min(2, before), 1):
        set_threads(count)
        found.append(decoded(model, ids, model.new_caches(3)))
    np.testing.assert_array_equal(found[0], found[1])


# ---------------------------------------------------------------------- changes between two tokens


CHANGES: dict[str, Callable[[Any], object]] = {
    "layer": lambda model: setattr(model.h[1].mlp, "c_fc", nn.Linear(72, 288).double()),
    "parameter": lambda model: setattr(model.h[1].ln_1, "weight", nn.Parameter(mg.full((72,), 2.0, dtype=mg.float64))),
    "array": lambda model: setattr(model.wte.weight, "data", model.wte.weight.data * 2),
    "in place": lambda model: mg.no_grad()(model.h[0].attn.c_attn.weight.mul_)(0.5),
    "class": lambda model: setattr(model.h[0].mlp, "gelu", nn.ReLU()),
    "hook": lambda model: model.h[0].mlp.register_forward_hook(lambda module, args, y: 2 * y),
    "pre-hook": lambda model: model.h[1].mlp.register_forward_pre_hook(lambda module, args: (2 * args[0],)),
    "own hook": lambda model: model.register_forward_hook(lambda module, args, y: 2 * y),
    "forward": lambda model: setattr(model.h[0].mlp, "forward", lambda x, residual=None: 0.1 * x),
    "option": lambda model: setattr(model.ln_f, "eps", 10.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_counts_from_the_next_token_on(change: str) -> None:
    ids, found = tokens(2, 9), {}
    for way in ("graph", "modules"):
        model = gpt2()
        mg.manual_seed(0)
        if way == "modules":
            model.drop.register_forward_hook(lambda module, args, y: None)
        caches = model.new_caches(2)
        with mg.no_grad():
            model(ids[:, :3], caches)
            before = [model(ids[:, t : t + 1], caches).numpy() for t in range(3, 6)]
            assert by_graph(model, ids[:, :1], caches) == (way == "graph") == (caches[0].decoder.graphed.graphs == 1)
            CHANGES[change](model)
            found[way] = before + [model(ids[:, t : t + 1], caches).numpy() for t in range(6, 9)]
    np.testing.assert_allclose(found["graph"], found["modules"], rtol=1e-11, atol=1e-11)
    with mg.no_grad():
        assert abs(found["graph"][3] - gpt2()(ids[:, :7]).numpy()[:, -1:]).max() > 0.01  # the change is one


def test_dropout_autocast_and_half_floats_go_through_the_modules() -> None:
    ids = tokens(1, 3)
    model = gpt2(dropout=0.5)
    caches = model.new_caches(1)
    with mg.no_grad():
        model(ids[:, :1], caches)
        assert by_graph(model, ids[:, :1], caches)
        model.train()
        assert not by_graph(model, ids[:, :1], caches)
        model(ids[:, 1:2], caches)
        with mg.autocast("cpu", mg.bfloat16):
            assert not by_graph(model, ids[:, :1], caches)
        model.bfloat16().eval()
        caches = model.new_caches(1)
        assert model(ids[:, :1], caches).dtype == mg.bfloat16 and not by_graph(model, ids[:, :1], caches)


def test_a_subclass_that_computes_something_else() -> None:
    class Louder(GPT2):
        def _features(self, tokens: Tensor, caches: list[nn.KVCache] | None = None) -> Tensor:
            return 2 * super()._features(tokens, caches)

    class Named(GPT2):
        pass

    ids = tokens(1, 1)
    for cls, factor in ((Louder, 2), (Named, 1)):
        model = randomised(cls(GPT))
        caches = model.new_caches(1)
        with mg.no_grad():
            found = model(ids, caches).numpy()
            np.testing.assert_allclose(found, factor * gpt2()(ids).numpy(), rtol=1e-11)
            assert by_graph(model, ids, caches) == (factor == 1)


def test_what_the_modules_refuse_is_refused() -> None:
    model = gpt2()
    caches = model.new_caches(2, max_tokens=2)
    with mg.no_grad():
        model(tokens(2, 1), caches)
        raises(IndexError, "index 19 at position 1 is out of range for 19 rows", model, mg.tensor([[0], [19]]), caches)
        raises(IndexError, "index -1 at position 0 is out of range", lambda: model(mg.tensor([[-1], [0]]), caches))
        raises(TypeError, "integers", lambda: model(mg.ones(2, 1), caches))
        raises(ValueError, "this cache expects", lambda: model(tokens(1, 1), caches))
    raises(RuntimeError, "no_grad", lambda: model(tokens(2, 1), caches))
    with mg.no_grad():
        assert caches[0].length == 1
        model(tokens(2, 1), caches)
        raises(ValueError, "KVCache holds 2 tokens; 2 are in it and 1 more came", lambda: model(tokens(2, 1), caches))


def test_the_next_text_launches_the_graph_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, drawn, sample = gpt2().float(), tokens(1, 2), [], generation.sample
    monkeypatch.setattr(
        generation, "sample", lambda logits, *rest: (drawn.append(logits.numpy()), sample(logits, *rest))[1]
    )
    texts = [model.generate(ids, 5, seed=1).tolist() for _ in range(2)]
    assert texts[0] == texts[1] and np.array_equal(drawn[:5], drawn[5:10])  # to the last bit
    graph = weakref.ref(model._kept[0].decoder.graphed)
    model.generate(ids, 5)
    assert model._kept[0].decoder.graphed is graph() and graph().graphs == 1
    fresh = gpt2().float()
    for each in (model, fresh):
        CHANGES["array"](each)
    assert model.generate(ids, 5, seed=1).tolist() == fresh.generate(ids, 5, seed=1).tolist() and graph() is None
    caches = weakref.ref(model._kept[0])
    model.generate(tokens(2, 2), 5)  # of other sizes
    assert caches() is None
    caches, array = weakref.ref(model._kept[0]), weakref.ref(model.embedding.weight.data)
    copied = copy.deepcopy(model)
    assert copied.generate(ids, 5, seed=1).tolist() == fresh.generate(ids, 5, seed=1).tolist()
    del model, each
    assert caches() is array() is None


def test_a_model_that_its_own_attribute_leads_to_is_freed_after_a_text() -> None:
    model = gpt2().float()
    model.measure = model.loss
    model.h[0].register_forward_hook(lambda *_, model=model: None)
    for _ in range(2):
        model.generate(tokens(1, 2), 5)
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None
