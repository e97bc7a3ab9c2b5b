"""LoRA: the layer's formula, what learns, merging, the file of the difference, and models that generate."""

import numpy as np
import pytest
from language_models import PLANS_RUN, VOCAB, randomised, tokens
from refusals import raises

import minigrad as mg
from minigrad import nn
from minigrad.models import GPT2, GPT2Config, Llama, LlamaConfig
from minigrad.nn import lora

SIZES = (VOCAB, 16, 2, 2)


def gpt2(**options) -> GPT2:
    return randomised(GPT2(GPT2Config(*SIZES, 16, **options)))


def wrapped(model: nn.Module, *names: str, **options):
    """The model with random changes in the layers."""
    for layer in lora.wrap(model, names or ["c_attn", "c_proj"], **{"rank": 2, **options}).values():
        nn.init.normal_(layer.lora_B, std=0.2)
    return model


def test_the_formula_its_gradients_and_the_start() -> None:
    mg.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4, dtype=mg.float64), nn.Linear(4, 3, bias=False, dtype=mg.float64))
    x, ids = mg.randn(2, 5, dtype=mg.float64), [p.id for p in model.parameters()]
    start = model(x)
    layers = lora.wrap(model, ["0", "1"], rank=3, alpha=6.0)
    assert [(layer.in_features, layer.out_features) for layer in layers.values()] == [(5, 4), (4, 3)]
    assert (model(x) == start).all() and [p.id for p in model.parameters() if not p.requires_grad] == ids
    for layer in layers.values():
        nn.init.normal_(layer.lora_B)
    want = x.numpy()
    for layer in layers.values():
        weight = layer.weight.data + 6.0 / 3 * layer.lora_B.data @ layer.lora_A.data
        want = want @ weight.T + (0 if layer.bias is None else layer.bias.data)
    np.testing.assert_allclose(model(x).detach().numpy(), want, rtol=1e-13)
    learning = [p for p in model.parameters() if p.requires_grad]
    assert len(learning) == 4 and mg.gradcheck(lambda *_: model(x).square().sum(), learning)
    layers["0"].dropout = 0.5
    assert not (model(x) == model(x)).all() and (model.eval()(x).detach().numpy() == model(x).detach().numpy()).all()


@pytest.mark.parametrize("recomputed", [False, True])
def test_only_the_changes_learn_also_where_blocks_are_recomputed(recomputed: bool) -> None:
    model, ids = wrapped(gpt2(checkpoint_blocks=recomputed)), tokens(2, 6)
    grads = model.loss(ids[:, :-1], ids[:, 1:]).backward()
    learning = [p for name, p in model.named_parameters() if ".lora_" in name]
    assert len(grads) == len(learning) == 12 and all(grads[p].abs().max() > 0 for p in learning)


KINDS = [(gpt2, ["c_attn", "c_proj", "c_fc"]), (lambda: randomised(Llama(LlamaConfig(*SIZES, 1, 16, 24))), ["q_proj"])]


@pytest.mark.parametrize(("make", "names"), KINDS, ids=["gpt2", "llama"])
def test_generation_with_a_cache_is_the_merged_models(make, names) -> None:
    model, ids = wrapped(make(), *names), tokens(2, 5)
    logits, text = model(ids).detach().numpy(), model.generate(ids, 20, temperature=0).tolist()
    with mg.unfused():
        assert model.generate(ids, 20, temperature=0).tolist() == text
    with mg.no_grad():
        model(ids, caches := model.new_caches(2))
        if PLANS_RUN:
            assert "forward runs as 'decode'" in str(
                mg.explain(model, ids[:, :1], caches)
            )  # a graph of the same layers
            assert make is not gpt2 or "'feed forward': a module within " in str(mg.explain(model, ids))
    assert model.generate(ids, 20, temperature=0).tolist() != make().generate(ids, 20, temperature=0).tolist()
    lora.merge(model)
    assert {type(m) for m in model.modules()} == {type(m) for m in make().modules()}
    np.testing.assert_allclose(model(ids).detach().numpy(), logits, rtol=1e-10, atol=1e-10)
    assert model.generate(ids, 20, temperature=0).tolist() == text


def test_what_does_not_fit_leaves_the_model_as_it_was(tmp_path) -> None:
    path, model = tmp_path / "lora.safetensors", wrapped(gpt2())
    state = {name: x.detach().numpy() for name, x in model.state_dict().items() if ".lora_" in name}
    last = [name for name in state if name.endswith("lora_B")][-1]
    for change in (state[last][:, :-1], state[last].astype("int64")):
        mg.serialization.save_safetensors(path, {**state, last: change})
        for other in (gpt2(), wrapped(gpt2())):
            before = {name: x.tolist() for name, x in other.state_dict().items()}
            learns = [p.requires_grad for p in other.parameters()]
            raises(ValueError, last, lora.load, other, path)
            assert {name: x.tolist() for name, x in other.state_dict().items()} == before
            assert [p.requires_grad for p in other.parameters()] == learns


def test_the_difference_alone_is_saved_and_comes_back(tmp_path) -> None:
    path, model, ids = tmp_path / "lora.safetensors", wrapped(gpt2(), alpha=5.0), tokens(1, 4)
    lora.save(model, path)
    for other in (gpt2(), wrapped(gpt2())):
        lora.load(other, path)
        assert (other(ids) == model(ids)).all() and [*lora.layers(other)] == [*lora.layers(model)]
