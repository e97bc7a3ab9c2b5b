"""Ddp: replicas in one process, or one in each rank, against one model that sees the whole batch in float64."""

import functools
import math

import numpy as np
import pytest
from data_parallel import EVERYTHING, ROWS, Net, Scenario
from ranks import on_processes, requires_mpi
from refusals import raises
from replica_models import bits

from minigrad import GradStore, Tensor, nn
from minigrad.distributed import Communicator, Ddp, DdpConfig, all_gather_bytes, run_threads

CUTS = {(6, 6): (0, 6, 12), (7, 5): (0, 7, 12), (9, 0, 3): (0, 9, 9, 12)}


def batch(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.random.default_rng(seed).standard_normal((2, ROWS, 5))
    return x, y


def nets(n: int, tied: bool = False, frozen: tuple[str, ...] = ()) -> list[Net]:
    return [Scenario((), tied=tied, frozen=frozen).net() for _ in range(n)]


def gradients(net: Net, begin: int, end: int, parts: frozenset[str] = EVERYTHING) -> GradStore:
    x, y = batch()
    if begin == end:
        return GradStore()
    return net.loss(Tensor(x[begin:end]), Tensor(y[begin:end]), parts).backward()


def by_name(net: Net, grads: GradStore) -> dict[str, np.ndarray]:
    return {name: grads[p].numpy() for name, p in net.named_parameters() if p in grads}


def assert_gradients(net: Net, grads: GradStore, expected: dict[str, np.ndarray]) -> None:
    got = by_name(net, grads)
    assert got.keys() == expected.keys()
    for name, grad in got.items():
        np.testing.assert_allclose(grad, expected[name], rtol=1e-10, atol=1e-13, err_msg=name)


# ------------------------------------------------------------------ wrap


# ------------------------------------------------------------------ weights and buffers


def normed(seed: int) -> nn.Module:
    rng = np.random.default_rng(seed)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    for _, p in model.named_parameters():
        p.data[...] = rng.standard_normal(p.shape)
    model(Tensor(rng.standard_normal((6, 5)).astype(np.float32)))
    return model


def test_sync_params_gives_all_the_bits_of_rank_0() -> None:
    models = [normed(seed) for seed in range(3)]
    before = bits(models[0])
    assert bits(models[1]) != before
    with Ddp.wrap(models, ["cpu"] * 3) as ddp:
        assert (ddp.world_size, [str(device) for device in ddp.devices]) == (3, ["cpu"] * 3)
        ddp.sync_params()
    assert [bits(model) for model in models] == [before] * 3
    assert "1.running_mean" in before
    assert "1.num_batches_tracked" in before


def test_sync_buffers_leaves_parameters_alone() -> None:
    models = [normed(seed) for seed in range(2)]
    before = [bits(model) for model in models]
    with Ddp.wrap(models, ["cpu"] * 2) as ddp:
        ddp.sync_buffers()
    buffers = {name for name, _ in models[0].named_buffers()}
    assert bits(models[0]) == before[0]
    assert bits(models[1]) == {name: before[name not in buffers][name] for name in before[0]}


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize("sizes", CUTS)
@pytest.mark.parametrize("missing", [None, 0, 1])
def test_weighted_all_reduce_of_unequal_shards_is_the_whole_batch(sizes: tuple[int, ...], missing: int | None) -> None:
    """Unequal shards, or an empty one; a frozen parameter; one that a rank does not use, and one that nobody uses."""
    models, alone = nets(len(sizes), frozen=("bias",)), nets(1, frozen=("bias",))[0]
    parts = [frozenset({"gain"}) if rank == missing else EVERYTHING for rank in range(len(sizes))]
    cuts = CUTS[sizes]
    total = {}
    for rank, size in enumerate(sizes):
        for name, grad in by_name(alone, gradients(alone, cuts[rank], cuts[rank + 1], parts[rank])).items():
            total[name] = total.get(name, 0.0) + grad * size / ROWS
    if missing is None:
        for name, grad in by_name(alone, gradients(alone, 0, ROWS)).items():
            np.testing.assert_allclose(grad, total[name], rtol=1e-10, atol=1e-13)
    with Ddp.wrap(models, ["cpu"] * len(sizes)) as ddp:
        grads = [gradients(models[r], cuts[r], cuts[r + 1], parts[r]) for r in range(len(sizes))]
        if sizes == (6, 6):
            ddp.all_reduce_gradients(grads)
        else:
            ddp.weighted_all_reduce_gradients(grads, sizes)
    for model, store in zip(models, grads, strict=True):
        assert_gradients(model, store, total)
        assert all(np.array_equal(g, by_name(model, store)[name]) for name, g in by_name(models[0], grads[0]).items())
    assert total.keys() == {"embed", "side", "gain", "head"}


def test_gradients_of_an_earlier_call_stay_as_they_are() -> None:
    models = nets(2)
    with Ddp.wrap(models, ["cpu"] * 2) as ddp:
        first = [gradients(models[0], 0, 6), gradients(models[1], 6, 12)]
        own = first[0][models[0].embed]
        before = own.numpy().copy()
        ddp.all_reduce_gradients(first)
        assert np.array_equal(own.numpy(), before)
        kept = by_name(models[0], first[0])["embed"].copy()
        ddp.all_reduce_gradients([gradients(model, 6, 12) for model in models])
    assert np.array_equal(first[0][models[0].embed].numpy(), kept)


BAD_COUNTS = [
    ([1], r"weighted_all_reduce: batch_counts len \(1\) != device count \(2\)"),
    ([0, 0], "weighted_all_reduce: total batch count is 0"), ([2, -1], "expected a finite number >= 0"),
    ([2, math.nan], "expected a finite number >= 0"),
]  # fmt: skip


@pytest.mark.parametrize(("counts", "words"), BAD_COUNTS)
def test_weighted_all_reduce_errors(counts, words: str) -> None:
    models = nets(2)
    with Ddp.wrap(models, ["cpu"] * 2) as ddp, pytest.raises(ValueError, match=words):
        ddp.weighted_all_reduce_gradients([gradients(model, 0, 6) for model in models], counts)


def test_gradients_that_do_not_fit_change_nothing() -> None:
    models = nets(2)
    with Ddp.wrap(models, ["cpu"] * 2) as ddp:
        grads = [gradients(model, 0, 6) for model in models]
        before = [by_name(model, store) for model, store in zip(models, grads, strict=True)]
        wrong = [grads[0], gradients(models[1], 0, 6)]
        wrong[1].insert(models[1].side, Tensor(np.zeros(2)))
        raises(ValueError, r"gradient of side on replica 1 has shape \(2,\)", lambda: ddp.all_reduce_gradients(wrong))
        for stores, given in ((grads[:1], "1 GradStores"), (grads[0], "one GradStore")):
            raises(ValueError, f"{given} for 2 replicas", functools.partial(ddp.all_reduce_gradients, stores))
        assert_gradients(models[0], grads[0], before[0])
        ddp.all_reduce_gradients(grads)
        assert_gradients(models[1], grads[1], before[0])


def between_two_ranks(comm: Communicator) -> None:
    """What each rank does, be it a thread or a process."""
    model = normed(comm.rank)
    Ddp.of_rank(model, comm).sync_params()
    assert bits(model) == bits(normed(0))
    net, alone = nets(2, frozen=("bias",))
    grads = gradients(net, *CUTS[7, 5][comm.rank : comm.rank + 2])
    Ddp.of_rank(net, comm).weighted_all_reduce_gradients([grads], (7, 5))
    assert_gradients(net, grads, by_name(alone, gradients(alone, 0, ROWS)))
    same = all_gather_bytes(comm, repr({name: g.tobytes() for name, g in by_name(net, grads).items()}).encode())
    assert same == [same[0]] * 2


def test_sync_params_and_weighted_all_reduce_between_ranks() -> None:
    run_threads(2, between_two_ranks, timeout=20)


@pytest.mark.long
@requires_mpi
def test_sync_params_and_weighted_all_reduce_between_processes() -> None:
    result = on_processes(2, between_two_ranks)
    assert [result.lines(rank) for rank in range(2)] == [["None"]] * 2


# ------------------------------------------------------------------ DdpConfig


@pytest.mark.parametrize(("target", "clamped"), [(0.001, 0.01), (0.3, 0.3), (0.9, 0.5), (None, None)])
def test_config_clamps_the_overhead_target(target: float | None, clamped: float | None) -> None:
    assert DdpConfig(overhead_target=target).overhead_target == clamped


def test_config_shows_the_keywords_to_who_begins_a_chain() -> None:
    raises(TypeError, r"DdpConfig\(speed_hint=\(1, 2.3\), overhead_target=0.1\)", DdpConfig.new)
    raises(TypeError, "timeline is 'file', expected a Timeline", lambda: DdpConfig(timeline="file"))
