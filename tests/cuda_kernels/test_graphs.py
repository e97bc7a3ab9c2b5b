"""CUDA graphs: their memory, and what only a GPU decides. ``autograd/test_captured_graphs.py`` has all devices'."""

import gc
from typing import Any

import numpy as np
import pytest
from graph_cases import drawn, same_bits
from harness import host
from refusals import raises

import minigrad as mg
from minigrad.cuda_kernels import cross_entropy, simulated
from minigrad.cuda_kernels.platform import graphs
from minigrad.cuda_kernels.platform.upload import Upload

cuda = mg.cuda


def on_gpu(array: np.ndarray) -> mg.Tensor:
    return mg.tensor(array, device="cuda")


def test_what_waits_for_copies_may_become_garbage_within_a_capture() -> None:
    uploads = [Upload(8, 0)]
    with cuda.Graph().capture():
        uploads.clear()  # an error of its finalizer is one of the test's


def test_the_device_updates_only_where_all_ranks_launched_the_same_step() -> None:
    """Two ranks, each with two losses and a mark, after this rank's mark."""
    stopped, zero = on_gpu(np.zeros(1, np.int32)), on_gpu(np.zeros(1, np.int32))

    def decided(own: float, *rows: float, norm: float = 1.0, outside: int = 0, overflow: int = 0) -> tuple[int, int]:
        results = on_gpu(np.array([np.nan, np.nan, own, *rows]))
        flags = [on_gpu(np.array([x], np.int32)).data for x in (overflow, outside)]
        allowed, norms = on_gpu(np.full(1, 7, np.int32)), on_gpu(np.array([norm]))
        graphs.decide.launch(1, results.data, 2, 2, 1, norms.data, *flags, stopped.data, allowed.data)
        return int(results[0].item()), int(allowed.item())

    same = (5.0, 0.1, 0.2, 5.0, 0.3, 0.4, 5.0)
    assert decided(*same) == (0, 1)
    assert decided(*same, overflow=1) == (graphs.OVERFLOW, 0) and not stopped.item()
    for code, values, flags in (
        (graphs.APART, (5.0, 0.1, 0.2, 5.0, 0.3, 0.4, 6.0), {}),
        (graphs.APART, (6.0, *same[1:]), {}),  # what an earlier step left there
        (graphs.APART, (5.0, 0.1, 0.2, 5.0, np.nan, 0.4, np.nan), {"outside": 1}),
        (graphs.LOSS, (5.0, 0.1, 0.2, 5.0, 0.3, np.inf, 5.0), {}),
        (graphs.RANGE, same, {"outside": 1, "norm": np.nan}),
        (graphs.GRADIENT, same, {"norm": np.nan}),
    ):
        assert decided(*values, **flags) == (code, 0)
        assert stopped.item() == 1 and decided(*same) == (graphs.STOPPED, 0)
        stopped.copy_(zero)


def test_the_graphs_memory_is_nobody_elses_until_it_is_closed() -> None:
    x = on_gpu(drawn(64))
    expected = host((x * 2.0) + 1.0)  # what kernels keep for themselves is there now
    gc.collect()
    before = cuda.memory_reserved()
    graph = cuda.Graph()
    with graph.capture():
        y = (x * 2.0) + 1.0  # the product is freed within the capture
    pool = {address for blocks in graph.raw.pool._free.values() for address, _ in blocks} if simulated() else set()
    others = [on_gpu(np.full(64, np.nan, np.float32)) for _ in range(20)]
    assert not pool & {other.data.pointer for other in others}
    graph.replay()
    np.testing.assert_array_equal(host(y), expected)
    assert all(np.isnan(host(other)).all() for other in others)
    del others
    assert graph.pool_bytes >= 2 * 64 * 4 and cuda.memory_reserved() > before
    graph.close()
    del y
    gc.collect()
    assert cuda.memory_reserved() == before


@pytest.mark.skipif(not simulated(), reason="a GPU does not tell that an address has no memory any more")
def test_a_launch_that_uses_memory_that_is_gone_is_an_error_in_the_simulator() -> None:
    x = on_gpu(drawn(3))
    graph = cuda.Graph()
    with graph.capture():
        y = x * 2.0
    del x
    gc.collect()
    raises(Exception, "lies in no device memory", lambda: graph.replay())
    assert y.shape == (3,)


@pytest.mark.parametrize("dtype", [mg.float32, mg.float16])
def test_the_loss_in_chunks_is_captured_in_chunks(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launch counts its own targets; all logits at once exist in none."""
    monkeypatch.setattr(mg.Device("cuda").kernels.linear_cross_entropy, "CHUNK_BYTES", 4 * 4 * 2)
    x, w = (on_gpu(drawn(4, 3)).to(dtype).requires_grad_(), on_gpu(drawn(4, 3, seed=1)).to(dtype).requires_grad_())
    targets = on_gpu(np.array([0, 3, 1, 2]))

    def step() -> list[mg.Tensor]:
        loss = mg.nn.functional.linear_cross_entropy(x, w, targets)
        grads = (loss.float() * 8).backward()
        return [loss.detach(), grads[x], grads[w]]

    graph = cuda.Graph()
    with graph.capture():
        monkeypatch.setattr(cross_entropy, "forward", None)  # that of whole logits
        found = step()
    for now in ([3, 3, -100, 1], [-100] * 4, [0, -100, -100, -100]):
        targets.copy_(on_gpu(np.array(now)))
        graph.replay()
        launched = [host(t) for t in found]
        assert same_bits(launched, [host(t) for t in step()])
        assert np.isnan(launched[0]) == (max(now) < 0) and launched[2].any() == (max(now) >= 0)
    graph.check()
