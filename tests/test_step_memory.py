"""What a step keeps in memory: counted in the graph, measured by the allocators, and predicted for GPT-2."""

import pytest
from processes import python
from refusals import raises

import minigrad
from minigrad.models import GPT2, GPT2Config, gpt2_memory
from minigrad.optim import AdamW
from minigrad.tools.step_memory import memory_report

SIZES = {"vocab_size": 96, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16}


@pytest.mark.parametrize(
    "changes", [{}, {"dropout": 0.5}, {"bias": False}, {"n_inner": 24}, {"n_layer": 1, "checkpoint_blocks": True}]
)
def test_the_prediction_is_what_is_counted(changes: dict[str, object]) -> None:
    config = GPT2Config(**{**SIZES, **changes})  # type: ignore[arg-type]
    model = GPT2(config)
    x, y = (minigrad.randint(0, config.vocab_size, (3, 5)) for _ in range(2))
    optimizer = AdamW(model.parameters())
    report = memory_report(model, lambda: model.loss(x, y), optimizer)
    assert report.optimizer == 0  # before the first step
    optimizer.step(model.loss(x, y).backward())
    report = memory_report(model, lambda: model.loss(x, y), optimizer)
    expected = gpt2_memory(config, 3, 5)
    assert report.activations == expected.activations
    for kind in ("weights", "buffers", "gradients", "optimizer", "weight_copies", "kept"):
        assert getattr(report, kind) == getattr(expected, kind), kind
    assert sum(report.modules.values()) == report.kept
    within = sum(size for name, size in report.modules.items() if name.startswith("h.0"))
    outside = {"LinearCrossEntropy", "Embedding"}
    rest = sum(size for op, size in report.activations.items() if op not in outside)
    N, C = 15, config.n_embd
    assert within == (rest - N * (4 * C + 8)) // config.n_layer


def test_buffers_count_once_and_weights_not_at_all() -> None:
    x = minigrad.ones(4, 6, requires_grad=True)
    layer = minigrad.nn.Linear(6, 3, bias=False)

    def loss() -> minigrad.Tensor:
        h = layer(x)  # keeps x and the weight
        view = h.reshape(12)
        return (view * view).sum() + (h * h).exp().sum()  # both products keep h; exp keeps its result

    report = memory_report(layer, loss)
    assert report.weights == report.gradients == 72
    assert report.activations["Linear"] == 96
    assert sum(report.activations.values()) == 96 + 48 + 48  # x, h, exp
    assert report.modules == {"": 192}
    text = str(report)
    assert "by Linear" in text and "peak of the step" in text and "KiB" in text


def test_the_temporary_part_is_what_backward_allocates() -> None:
    """Of a chain of two exponentials: each keeps its result, and gradients of two are there at once."""
    x = minigrad.ones(1 << 16, requires_grad=True)
    x.exp().exp().sum().backward().get(x)  # loads the kernels
    report = memory_report(minigrad.nn.Module(), lambda: x.exp().exp().sum())
    size = 4 << 16
    assert report.kept == 2 * size
    assert 0 <= report.temporary - report.temporary // size * size < size // 8  # whole arrays, and small things
    assert report.temporary // size in (1, 2)


def test_checkpointing_keeps_the_inputs_of_blocks() -> None:
    configs = [GPT2Config(50304, checkpoint_blocks=c) for c in (False, True)]
    plain, less = (gpt2_memory(config, 64, dtype=minigrad.bfloat16) for config in configs)
    assert less.activations["checkpoint"] == 12 * 65536 * (4 * 768 + 4)
    assert less.kept < plain.kept / 2


def test_gpt2_124m_fits_a_card_of_80_gigabytes() -> None:
    """The figures of docs/training.md."""
    for checkpointing, kept, peak in ((False, 16.32, 18.97), (True, 2.77, 6.74)):
        report = gpt2_memory(GPT2Config(50304, checkpoint_blocks=checkpointing), 64, dtype=minigrad.bfloat16)
        assert round(report.kept / 2**30, 2) == kept
        assert round(report.peak / 2**30, 2) == peak
        assert report.peak + report.gradients < 80e9
    assert round(gpt2_memory(GPT2Config(50304), 64).peak / 2**30, 2) == 30.83  # float32


def test_other_inputs_are_refused() -> None:
    model = minigrad.nn.Linear(2, 2)
    for loss, words in ((minigrad.ones(1), "a tensor that nothing can be learned from"), (3, "3 that")):
        raises(TypeError, f"compute_loss returned {words}", lambda loss=loss: memory_report(model, lambda: loss))
    assert not model._forward_hooks and not model._forward_pre_hooks
    expected = "dtype is int64; expected float32, bfloat16 or float16"
    raises(ValueError, expected, lambda: gpt2_memory(GPT2Config(), 1, dtype=minigrad.int64))
    raises(ValueError, "tied=False", lambda: gpt2_memory(GPT2Config(tied=False), 1))


def test_a_limit_of_the_address_space_is_a_limit_of_the_free_memory():
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))"
    program = f"{limit}\nfrom minigrad.tools.free_memory import free_memory\nprint(free_memory())"
    done = python("-c", program, returncode=0)
    assert 2**30 < int(done.stdout) < 2**33
