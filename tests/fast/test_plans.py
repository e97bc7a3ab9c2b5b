"""The door: what turns plans off, what is told of them, and that with all off the results are what the plans say."""

import numpy as np
import pytest
from graph_cases import operations
from in_threads import outcomes
from processes import python
from refusals import raises

import minigrad as mg
from minigrad import nn
from minigrad.distributed import run_threads
from minigrad.models import GPT2, GPT2Config, Llama, LlamaConfig
from minigrad.modes import of_thread
from minigrad.plans import PLANS, CallRecorder, recording

CONFIG = GPT2Config(vocab_size=19, block_size=8, n_layer=2, n_head=2, n_embd=16)


def drawn_model(config: GPT2Config = CONFIG) -> tuple[GPT2, mg.Tensor]:
    mg.manual_seed(0)
    model = GPT2(config)
    return model, mg.tensor(np.random.default_rng(0).integers(0, config.vocab_size, (4, 8)))


pytestmark = pytest.mark.usefixtures("on_one_thread")
FUSED = {"FeedForward"}
BLOCK = {*FUSED, "LayerNorm", "Linear", "PackedAttention"}
PLAIN = {"Add", "Embedding", "Gelu", "LayerNorm", "Linear", "LinearCrossEntropy", "PackedAttention"}


def test_unfused_is_for_all_plans_or_some_and_for_one_thread() -> None:
    model, tokens = drawn_model()
    with mg.unfused():
        assert set(operations(model.loss(tokens, tokens))) == PLAIN
        with mg.unfused("feed forward"):
            assert set(operations(model.loss(tokens, tokens))) == PLAIN  # more than none are off
        seen = outcomes([0], lambda _: set(operations(model.loss(tokens, tokens))))
    assert set(operations(model.loss(tokens, tokens))) > FUSED
    with mg.unfused("feed forward"), mg.unfused("sums in products"):
        assert not set(operations(model.loss(tokens, tokens))) & FUSED
    assert seen[0] > FUSED
    with pytest.raises(ValueError, match="there is no plan 'all'"), mg.unfused("all"):
        pass


def test_the_environment_turns_all_off() -> None:
    program = (
        "import minigrad as mg; block = mg.nn.Block(8, 2); y = block(mg.ones(4, 8, 8)); print(type(y.node).__name__)\n"
        "with mg.unfused('feed forward'): print(mg.explain(block, y))"
    )
    run = python("-c", program, env={"MINIGRAD_FAST": "0"}, check=True)
    assert run.stdout.splitlines()[:2] == ["Add", "no fast way is tried: MINIGRAD_FAST=0"]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_results_without_plans(dropout: float) -> None:
    """The loss has the same bits, gradients differ by the rounding of the GELU's derivative."""
    model, tokens = drawn_model(GPT2Config(**{**vars(CONFIG), "dropout": dropout}))
    found = []
    for names in ((), ("feed forward", "sums in products"), ("sums in products",), None):
        mg.manual_seed(1)
        if names is None:
            loss = model.loss(tokens, tokens)
        else:
            with mg.unfused(*names):
                loss = model.loss(tokens, tokens)
        grads = loss.backward()
        found.append([loss.detach().numpy(), *(grads[p].numpy() for p in model.parameters())])
    assert all(one[0] == found[0][0] for one in found)
    for a, b, c, d in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-6 * np.abs(a).max())
        np.testing.assert_array_equal(c, d)


def test_a_block_with_dropout_fuses_what_comes_before_it() -> None:
    block, x = nn.Block(12, 3, dropout=0.5), mg.randn(2, 7, 12)
    assert set(operations(block.eval()(x))) == BLOCK
    trained = operations(block.train()(x))
    assert trained.count("Dropout") == trained.count("Add") == 2
    assert "FeedForward" in trained


def test_a_mistake_in_the_arguments_is_told_by_the_method() -> None:
    block = nn.Block(8, 2)
    raises(TypeError, r"Block\.forward\(\) missing 1 required positional argument: 'x'", lambda: block())
    raises(TypeError, r"Block\.forward\(\) got an unexpected keyword argument", block, mg.ones(4, 8, 8), masks=None)


def test_arguments_by_name_are_those_by_position() -> None:
    block, mask = nn.Block(8, 2), mg.ones(8, 8, dtype=mg.bool_)
    x = mg.randn(4, 8, 8)
    assert set(operations(block(x=x))) == BLOCK
    np.testing.assert_array_equal(block(x, attn_mask=mask).detach().numpy(), block(x, None, mask).detach().numpy())


def test_a_subclass_has_the_plans_of_what_it_inherits() -> None:
    class Named(nn.Block):
        pass

    class Other(nn.Block):
        def forward(self, x: mg.Tensor, *more: object) -> mg.Tensor:
            return x * 2

    x = mg.randn(4, 8, 8)
    assert set(operations(Named(8, 2)(x))) == BLOCK
    np.testing.assert_array_equal(Other(8, 2)(x).numpy(), 2 * x.numpy())


def test_explain_says_what_runs_and_why_other_plans_do_not() -> None:
    model, tokens = drawn_model()
    text = str(mg.explain(model, tokens))
    assert "model: GPT2\n  forward not as 'decode': it is not one token of each sequence with caches\n" in text
    assert "  h.0: Block\n    forward runs as 'sums in products'; the same bits\n" in text
    model.train().h[0].attn.resid_dropout.p = 0.5
    text = str(mg.explain(model, tokens))
    assert "  h.0: Block\n    forward not as 'sum with norm': only on a GPU\n" in text
    assert "    forward not as 'sums in products': dropout acts between a product and its sum\n" in text
    assert "forward not as 'sum with norm': only on a GPU" in text
    with mg.unfused():
        text = str(mg.explain(model, tokens))
    assert "    h.0.mlp: MLP\n      forward not as 'feed forward': plans are off" in text
    assert "runs as" not in text and "h.1.mlp.c_fc: Linear" in text
    with mg.no_grad():
        caches = model.eval().new_caches(4)
        assert "forward runs as 'decode'" in str(mg.explain(model, tokens[:, :1], caches))
        model.ln_f.register_forward_hook(lambda *_: None)
        assert "not as 'decode': a module within has hooks" in str(mg.explain(model, tokens[:, :1], caches))


def test_every_plan_says_its_name_and_equality_and_applies_somewhere() -> None:
    plans = [plan for plans in PLANS.values() for plan in plans]
    assert all(plan.name and plan.equality for plan in plans)
    chosen: set[str] = set()

    class Names(CallRecorder):
        def chose(self, module: object, method: str, plan: object, against: object) -> None:
            chosen.update({plan.name} if plan is not None else ())  # type: ignore[attr-defined]

    model, tokens = drawn_model()
    llama = Llama(LlamaConfig(19, 8, 1, 2, 1, 16, 16))
    with recording(Names()):
        model(tokens), llama(tokens)
        model.train().h[0].attn.resid_dropout.p = 0.5
        model(tokens)
        with mg.no_grad():
            model.eval()(tokens[:, :1], model.new_caches(4))
    assert chosen == {plan.name for plan in plans} - {"sum with norm", "sums with norms across blocks"}  # of GPUs


def test_the_plain_graph_is_drawn_on_request() -> None:
    model, tokens = drawn_model()
    fused, plain = (mg.draw(lambda: model.loss(tokens, tokens), model, plain=plain) for plain in (False, True))
    assert "FeedForward" in fused and "FeedForward" not in plain and "PackedAttention" in plain
    raises(TypeError, "plain=True needs a function", lambda: mg.draw(model.loss(tokens, tokens), model, plain=True))


def test_a_bad_value_of_the_environment_is_refused() -> None:
    done = python("-c", "import minigrad", env={"MINIGRAD_FAST": "false"})
    assert done.returncode and "MINIGRAD_FAST in the environment is 'false'; expected '0'" in done.stderr


def test_ranks_of_threads_compute_as_their_caller_does() -> None:
    with mg.kernels("plain"), mg.unfused():
        found = run_threads(2, lambda comm: (mg.Device("cpu").kernels.__name__, of_thread.mode.unfused))
    assert found == [("minigrad.plain_kernels", True)] * 2


def test_explain_of_no_module_is_refused() -> None:
    raises(TypeError, "explain: the model is a int; expected a Module", lambda: mg.explain(3))
