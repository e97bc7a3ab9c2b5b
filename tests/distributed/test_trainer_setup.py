"""Trainer: one loop on one replica and on several, against one model that sees the whole batch in float64.

Replicas are on the CPU and, with "cuda", on the simulator's two devices or on GPUs; where there is one, they share it.
"""

import math
import threading
import time
from functools import partial

import numpy as np
import pytest
from data_parallel import ROWS, Net
from refusals import raises
from replica_models import bits, host

import minigrad
from minigrad import Tensor, cuda, distributed as dist, nn, optim, random
from minigrad.data import EpochSampler
from minigrad.distributed import DdpConfig, Trainer
from minigrad.distributed.mirrors.flodl import ddp
from minigrad.distributed.mirrors.flodl.timeline import EventKind, Timeline

LR = 0.01
NO_CUDA = pytest.mark.skipif(not cuda.is_available(), reason="no CUDA device, and NUMBA_ENABLE_CUDASIM=1 is not set")
CUDA = pytest.param("cuda", marks=NO_CUDA)
ANYWHERE = pytest.mark.parametrize("where", ["cpu", CUDA])


def batch(step: int = 0, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    x, y = np.random.default_rng([step, rows]).standard_normal((2, rows, 5))
    return Tensor(x), Tensor(y)


def loss_of(model, x: Tensor, y: Tensor) -> Tensor:
    return model.loss(x, y)


def sgd(params) -> optim.SGD:
    return optim.SGD(params, lr=LR)


def net(device="cpu", tied: bool = False, frozen=(), seed: int = 0) -> Net:
    made = Net(np.float64, seed, tied)
    for name, p in made.named_parameters():
        p.requires_grad_(name not in frozen)
    return made.to(device=device)


def devices(n: int, where: str) -> list[str]:
    return ["cpu"] * n if where == "cpu" else [f"cuda:{rank % cuda.device_count()}" for rank in range(n)]


def setup(n: int, config: DdpConfig | None = None, build=net, where: str = "cpu", **options) -> Trainer:
    config, there = DdpConfig(max_anchor=0) if config is None else config, devices(n, where)
    return Trainer.setup_with(build(there[0]), build, sgd, config, devices=there, **options)


def alone(steps: int, optimizer=sgd, rows: int = ROWS, **kinds) -> Net:
    """The model after plain training on whole batches."""
    model = net(**kinds)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    trainer = dist.SimpleTrainer(dist.TrainingConfig(max_grad_norm=None), optimizer(trained))
    for step in range(steps):
        trainer.backward_and_step(model.loss(*batch(step, rows)), model.named_parameters())
    return model


def assert_weights(model: nn.Module, exact: nn.Module, tolerance: float = 1e-10) -> None:
    found = host(model)
    for name, p in exact.named_parameters():
        np.testing.assert_allclose(found[name], p.data, rtol=tolerance, atol=1e-12, err_msg=name)


def assert_alike(trainer: Trainer) -> None:
    trainer.assert_replicas_identical()
    assert all(bits(model) == bits(trainer.models[0]) for model in trainer.models)


def made(metrics: dist.TrainingMetrics | None) -> dist.TrainingMetrics:
    assert metrics is not None
    return metrics


# ------------------------------------------------------------------ one-call setup


def mean_square(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ((model(x) - y) ** 2).mean()


def dropping(dtype=np.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 5)).to(dtype=dtype)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_one_call_setup_of_one_replica_is_plain_training_bit_for_bit(clip: float | None) -> None:
    data = [tuple(t.float() for t in batch(step, 6 + step)) for step in range(4)]
    random.manual_seed(5)
    plain = dropping()
    simple = dist.SimpleTrainer(dist.TrainingConfig(max_grad_norm=clip), optim.AdamW(plain.named_parameters(), lr=0.01))
    expected = []
    for x, y in data:
        expected.append(simple.backward_and_step(mean_square(plain, x, y), plain.named_parameters()))
    random.manual_seed(5)
    model = dropping().eval()
    trainer = Trainer.setup_with(
        model, lambda device: dropping(), lambda params: optim.AdamW(params, lr=0.01), DdpConfig(max_grad_norm=clip)
    )
    assert model.training
    assert [trainer.step(mean_square, *xy) for xy in data] == expected
    assert bits(model) == bits(plain)
    assert (trainer.world_size, trainer.global_step, trainer.el_che, trainer.flush()) == (1, 4, None, None)


@ANYWHERE
@pytest.mark.parametrize(
    ("n", "rows", "kinds"),
    [(2, 12, {}), (3, 10, {"tied": True}), (3, 2, {"frozen": ("bias", "side")}), (2, 7, {"tied": True})],
)
def test_one_call_setup_of_n_replicas_is_training_on_the_whole_batch(n: int, rows: int, kinds, where: str) -> None:
    exact, there, seen = alone(3, rows=rows, **kinds), devices(n, where), set()
    model = net(there[0], **kinds)

    def noting(model: Net, x: Tensor, y: Tensor) -> Tensor:
        current = "cpu" if where == "cpu" else f"cuda:{cuda.current_device()}"
        seen.add((threading.current_thread().name, str(x.device), current))
        return model.loss(x, y)

    with Trainer.setup(model, partial(net, seed=9, **kinds), sgd, devices=there) as trainer:
        losses = [made(trainer.step(noting, *batch(step, rows))).loss for step in range(3)]
        assert_alike(trainer)
    assert seen == {(f"replica-{rank}", there[rank], there[rank]) for rank in range(min(n, rows))}
    assert losses[0] == pytest.approx(net(**kinds).loss(*batch(0, rows)).item())
    assert_weights(model, exact)
    for name in kinds.get("frozen", ()):
        assert bits(model)[name] == bits(net())[name]


def test_gradient_scale_of_a_loss_that_is_a_mean_over_something_else() -> None:
    """Rows with x[:, 0] < 0 are padding: the loss is a mean over the others, of which the replicas have 4 and 1."""
    x, y = (t.data.copy() for t in batch(1, 8))
    x[:, 0] = [1, 2, 3, 4, -1, -1, 6, -1]

    def masked(model: Net, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        keep = Tensor((x.data[:, :1] > 0).astype(np.float64))
        count = float(keep.data.sum())
        return (((model(x) - y) * keep) ** 2).sum() / count, count

    one, two = setup(1), setup(2)
    metrics = [made(trainer.step(masked, Tensor(x), Tensor(y))) for trainer in (one, two)]
    assert metrics[0].loss == pytest.approx(metrics[1].loss)
    assert_weights(two.models[1], one.models[0])
    two.close()


def normed(device="cpu") -> nn.Module:
    random.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)).double().to(device=device)


@ANYWHERE
def test_buffers_are_those_of_replica_0_and_shards_have_statistics_of_their_own(where: str) -> None:
    x, y = batch(0, 10)
    first, second = normed(), normed()
    grads = [mean_square(first, x[:5], y[:5]).backward(), mean_square(second, x[5:], y[5:]).backward()]
    with setup(2, build=normed, where=where) as trainer:
        trainer.step(mean_square, x, y)
        assert_alike(trainer)
        found = host(trainer.models[1])
        for (name, expected), (_, other) in zip(first.named_buffers(), second.named_buffers(), strict=True):
            np.testing.assert_allclose(found[name], expected.data, rtol=0 if where == "cpu" else 1e-12)
            assert name == "1.num_batches_tracked" or not np.allclose(found[name], other.data)
        for (name, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
            mean = (grads[0][a].data + grads[1][b].data) / 2
            np.testing.assert_allclose(found[name], a.data - LR * mean, rtol=1e-10)


class Counting(nn.Module):
    def __init__(self, device="cpu") -> None:
        super().__init__()
        self.gain = nn.Parameter(Tensor(np.ones(5)))
        self.register_buffer("seen", Tensor(np.zeros(1)))
        self.to(device=device)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen.add_(x[0, 0].item())
        return ((x * self.gain - y) ** 2).mean()


def test_buffers_are_those_of_the_first_replica_that_had_rows() -> None:
    with setup(3, DdpConfig(max_anchor=0, speed_hint=(0, 4.0)), build=Counting) as trainer:
        x, y = batch(0, 2)  # for replicas 1 and 2
        trainer.step(loss_of, x, y)
        assert [model.seen.item() for model in trainer.models] == [x.data[0, 0]] * 3


def test_random_numbers_of_replicas_are_their_own_and_reproducible() -> None:
    def run() -> list[bytes]:
        random.manual_seed(11)
        with Trainer.setup(dropping(), lambda device: dropping(), sgd, devices=["cpu"] * 2) as trainer:
            draws = {}

            def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
                draws[trainer.models.index(model)] = minigrad.rand(3).data.copy()
                return mean_square(model, x, y)

            for step in range(3):
                trainer.step(loss, *(t.float() for t in batch(step, 8)))
            assert not np.array_equal(draws[0], draws[1])
            return [p.data.tobytes() for p in trainer.models[0].parameters()]

    assert run() == run()


def test_setup_head_trains_as_setup() -> None:
    class Head:
        def __init__(self) -> None:
            self.net = net()

        def graph(self) -> nn.Module:
            return self.net

        def compute_loss(self, x: Tensor, y: Tensor) -> Tensor:
            return self.net.loss(x, y)

    for n in (1, 2):
        with Trainer.setup_head(Head(), lambda device: Head(), sgd, devices=["cpu"] * n) as trainer:
            for step in range(2):
                trainer.step(lambda head, x, y: head.compute_loss(x, y), *batch(step))
            assert_weights(trainer.models[-1], alone(2))


# ------------------------------------------------------------------ ElChe


@ANYWHERE
def test_el_che_deals_out_whole_batches_and_makes_one_step_of_them(where: str) -> None:
    """Batches of unequal sizes, three rounds' worth and a rest; the gradient is the mean over all rows."""
    sizes = [4, 6, 3, 5, 4, 2, 7]
    with setup(2, DdpConfig(max_anchor=1, speed_hint=(1, 2.0)), where=where) as trainer:
        el_che = trainer.el_che
        assert el_che is not None
        assert el_che.batch_counts == [2, 1]
        got = [trainer.step(loss_of, *batch(i, size)) for i, size in enumerate(sizes[:3])]
        assert [metrics is None for metrics in got] == [True, True, False]
        exact = net()
        rows = [Tensor(np.concatenate([batch(i, size)[j].data for i, size in enumerate(sizes[:3])])) for j in (0, 1)]
        loss = exact.loss(*rows)
        assert made(got[2]).loss == pytest.approx(loss.item())
        sgd(exact.named_parameters()).step(loss.backward())
        assert_weights(trainer.models[1], exact)
        assert_alike(trainer)
        steps = 1
        for i, size in enumerate(sizes[3:]):
            steps += trainer.step(loss_of, *batch(i, size)) is not None
        rest = trainer.flush()
        assert trainer.flush() is None
        assert trainer.global_step == steps + (rest is not None)


def test_el_che_has_the_configuration() -> None:
    for config, found in [
        (DdpConfig(overhead_target=0.3, max_anchor=4), (0.3, 4, 4)),
        (DdpConfig(), (0.1, 10, 200)),
        (DdpConfig(max_anchor=0), None),
    ]:
        with setup(2, config) as trainer:
            el_che = trainer.el_che
            assert (el_che and (el_che.overhead_target, el_che.anchor, el_che.max_anchor)) == found


def test_el_che_flush_trains_on_fewer_batches_than_replicas() -> None:
    with setup(3, DdpConfig()) as trainer:
        assert trainer.step(loss_of, *batch(0)) is None
        raises(RuntimeError, "1 batches wait for the next step", lambda: trainer.state_dict())
        assert made(trainer.flush()).step == 1
        assert_weights(trainer.models[2], alone(1))


class VirtualTime(threading.local):
    """Takes the place of ``time`` in ``ddp``: a thread's clock goes on only when told to."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    clock = VirtualTime()
    monkeypatch.setattr(ddp, "time", clock)
    return clock


def test_slow_replica_el_che_counts_are_three_to_one(clock: VirtualTime) -> None:
    with setup(2, DdpConfig(max_anchor=2)) as trainer:
        assert trainer.el_che is not None
        slow = trainer.models[1]

        def loss(model: Net, x: Tensor, y: Tensor) -> Tensor:
            clock.now += 0.03 if model is slow else 0.01
            return model.loss(x, y)

        waited = []
        while trainer.global_step < 2:
            counts = trainer.el_che.batch_counts
            if trainer.step(loss, *batch(0, 2)) is not None:
                waited.append(abs(3 * counts[1] - counts[0]))
        assert trainer.el_che.batch_counts == [6, 2]
        assert waited == [4, 0]


def test_slow_replica_gets_fewer_rows_from_the_balancer(clock: VirtualTime) -> None:
    with setup(2) as trainer:
        slow = trainer.models[1]

        def loss(model: Net, x: Tensor, y: Tensor) -> Tensor:
            clock.now += len(x.data) * (3 if model is slow else 1)
            return model.loss(x, y)

        sizes = []
        for step in range(11):
            sizes.append(trainer.balancer.shard_sizes(16))
            trainer.step(loss, *batch(step, 16))
        assert sizes == [[8, 8]] * 10 + [[12, 4]]
        assert_weights(trainer.models[0], alone(11, rows=16), tolerance=1e-8)


def test_timeline_has_a_span_for_each_batch_and_the_reduction_after_them() -> None:
    timeline = Timeline()
    with setup(2, DdpConfig(max_anchor=1, timeline=timeline)) as trainer:
        assert trainer.step(loss_of, *batch()) is None
        made(trainer.step(loss_of, *batch()))
    by_kind = {kind: [event for event in timeline.events if event.kind is kind] for kind in EventKind}
    batches = by_kind[EventKind.BATCH]
    (start,), (end,) = by_kind[EventKind.SYNC_START], by_kind[EventKind.SYNC_END]
    assert {event.rank for event in batches} == {event.rank for event in by_kind[EventKind.IDLE]} == {0, 1}
    assert len(batches) == 2
    assert all(event.duration_ms > 0 for event in batches)
    assert max(event.end_ms for event in batches) <= start.at_ms <= end.at_ms


def test_timeline_of_one_replica_has_its_batches() -> None:
    timeline = Timeline()
    setup(1, DdpConfig(timeline=timeline)).step(loss_of, *batch())
    assert [(event.kind, event.rank) for event in timeline.events] == [(EventKind.BATCH, 0)]


# ------------------------------------------------------------------ clipping and learning rates


def test_clipping_is_per_replica_before_the_reduction() -> None:
    limit, sizes = 0.3, [7, 3]
    x, y = batch(0, 10)
    y.data[7:] *= 10
    exact = net()
    grads = [exact.loss(x[:7], y[:7]).backward(), exact.loss(x[7:], y[7:]).backward()]
    norms = [math.sqrt(sum(float((g.data**2).sum()) for g in store.values())) for store in grads]
    assert norms[1] > 2 * norms[0] > limit
    factors = [size / 10 * min(1, limit / norm) for size, norm in zip(sizes, norms, strict=True)]
    clipped = lambda p: sum(c * store[p].data for c, store in zip(factors, grads, strict=True))  # noqa: E731
    moved = {name: (p.data, clipped(p)) for name, p in exact.named_parameters() if p in grads[0]}
    with setup(2, DdpConfig(max_anchor=0, max_grad_norm=limit, speed_hint=(1, 7 / 3))) as trainer:
        metrics = made(trainer.step(loss_of, x, y))
        for name, p in trainer.models[1].named_parameters():
            if name in moved:
                np.testing.assert_allclose(p.data, moved[name][0] - LR * moved[name][1], rtol=1e-5)
    after = math.sqrt(sum(float((g**2).sum()) for _, g in moved.values()))
    assert metrics.grad_norm == pytest.approx(after, rel=1e-5)
    assert after <= limit


def test_learning_rates_are_the_same_on_one_replica_on_two_and_with_el_che() -> None:
    schedule = optim.ExponentialDecay(0.01, 0.5)
    seen = []
    for n, config in ((1, None), (2, None), (2, DdpConfig(max_anchor=1))):
        with setup(n, config, schedule=schedule) as trainer:
            rates: list[float] = []
            while len(rates) < 3:  # with ElChe as many batches as the measured speeds ask for
                metrics = trainer.step(loss_of, *batch())
                rates += [] if metrics is None else [metrics.lr]
            seen.append(rates)
    assert seen == [[schedule.get_lr(step) for step in range(3)]] * 3


def test_set_lr_reaches_all_replicas() -> None:
    with setup(2) as trainer:
        trainer.set_lr(0.5)
        assert made(trainer.step(loss_of, *batch())).lr == 0.5
        assert [optimizer.lr for optimizer in trainer.optimizers] == [0.5, 0.5]


# ------------------------------------------------------------------ what goes wrong


def raising(model: Counting, loss: Tensor) -> Tensor:
    raise KeyError("no such row")


def nan(model: Counting, loss: Tensor) -> Tensor:
    return loss * math.nan


def steep(model: Counting, loss: Tensor) -> Tensor:
    """A finite loss; the root's derivative at 0 is infinite."""
    return loss + (model.gain * 0.0).sqrt().sum()


FAILURES = [
    (raising, dist.ReplicaError, "replica 1 raised KeyError: 'no such row'"),
    (nan, dist.NonFiniteLossError, "loss of step 2 is nan on rank 1"),
    (steep, optim.NonFiniteGradientError, "^step 2, parameter gain: the gradient norm is (nan|inf)"),
]


@pytest.mark.parametrize(("limit", "where"), [(None, "cpu"), (1.0, "cpu"), pytest.param(1.0, "cuda", marks=NO_CUDA)])
@pytest.mark.parametrize(("spoil", "error", "words"), FAILURES)
def test_a_replica_that_fails_changes_nothing_and_the_next_step_is_as_if_nothing_was(spoil, error, words, limit, where):
    """Neither weights nor buffers."""

    def run(fails: bool) -> dict[str, bytes]:
        with setup(2, DdpConfig(max_anchor=0, max_grad_norm=limit), Counting, where) as trainer:

            def broken(model: Counting, x: Tensor, y: Tensor) -> Tensor:
                loss = model.loss(x, y)
                return spoil(model, loss) if model is trainer.models[1] else loss

            trainer.step(loss_of, *batch(0))
            before = [bits(model) for model in trainer.models]
            if fails:
                caught = raises(error, words, lambda: trainer.step(broken, *batch(7)))
                if isinstance(caught, dist.ReplicaError):
                    assert caught.rank == 1 and isinstance(caught.__cause__, KeyError)
                assert [bits(model) for model in trainer.models] == before
            assert made(trainer.step(loss_of, *batch(1))).step == 2
            assert_alike(trainer)
            return bits(trainer.models[0])

    assert run(True) == run(False)


def test_a_replica_that_hangs_is_named_within_the_deadline() -> None:
    with setup(2, timeout=2) as trainer:

        def hanging(model: Net, x: Tensor, y: Tensor) -> Tensor:
            time.sleep(6 if model is trainer.models[1] else 0)
            return model.loss(x, y)

        words = "replica 1 has not ended forward and backward within 2 s"
        raises(dist.ReplicaDroppedReplyError, words, trainer.step, hanging, *batch(0))
        raises(RuntimeError, "takes no more steps: replica 1", lambda: trainer.step(loss_of, *batch(0)))


def test_an_optimizer_that_fails_on_one_replica_stops_the_training() -> None:
    with setup(2) as trainer:
        trainer.optimizers[1].update = None  # type: ignore[method-assign,assignment]
        raises(TypeError, "", lambda: trainer.step(loss_of, *batch(0)))
        raises(RuntimeError, "replicas may differ since the reduction failed", lambda: trainer.step(loss_of, *batch(0)))


def test_freezing_replica_0_freezes_all() -> None:
    with setup(2) as trainer:
        trainer.step(loss_of, *batch(0))
        trainer.models[0].embed.requires_grad_(False)
        before = bits(trainer.models[1])
        trainer.step(loss_of, *batch(1))
        assert_alike(trainer)
        changed = {name for name, value in bits(trainer.models[1]).items() if value != before[name]}
        assert changed == {"bias", "side", "gain", "head"}


def test_a_new_trainer_says_where_its_replicas_are(capsys, monkeypatch) -> None:
    setup(2).close()
    assert capsys.readouterr().err == "minigrad: 2 replicas on cpu, cpu\n"
    monkeypatch.setattr(Trainer, "prints_summary", False)
    setup(2).close()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("n", [1, 2])
def test_a_speed_hint_and_a_scale_of_learning_rates_serve_any_number_of_devices(n: int) -> None:
    config = DdpConfig(max_anchor=0, speed_hint=(1, 2.3), lr_scale=0.5)
    for schedule, rate in ((None, LR), (optim.Constant(0.25), 0.25)):
        with setup(n, config, schedule=schedule) as trainer:
            metrics = trainer.step(loss_of, *batch())
            assert metrics is not None and metrics.lr == 0.5 * rate


# ------------------------------------------------------------------ resuming


@pytest.mark.parametrize("n", [1, 2])
def test_resume_is_bitwise_the_uninterrupted_run(n: int) -> None:
    def start(seed: int) -> Trainer:
        random.manual_seed(seed)
        model, adamw = dropping(np.float64), partial(optim.AdamW, lr=0.01)
        return Trainer.setup(model, lambda device: dropping(np.float64), adamw, devices=["cpu"] * n)

    def steps(trainer: Trainer, which: range) -> None:
        for step in which:
            trainer.step(mean_square, *batch(step))

    with start(1) as trainer:
        steps(trainer, range(2))
        state, draws = trainer.state_dict(), minigrad.random.default_generator.state_dict()
        weights = {name: t.data.copy() for name, t in trainer.models[0].state_dict().items()}
        steps(trainer, range(2, 4))
    with start(99) as again:
        again.models[0].load_state_dict(weights)
        again.load_state_dict(*state)
        minigrad.random.default_generator.load_state_dict(draws)
        steps(again, range(2, 4))
        assert again.global_step == 4
        assert [bits(model) for model in again.models] == [bits(trainer.models[0])] * n


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("resident", [False, True])
def test_a_data_loader_gives_the_batches_of_epochs(resident: bool, device: str) -> None:
    x, y = (np.random.default_rng(0).standard_normal((11, 5)) for _ in range(2))
    order, exact = EpochSampler(11, 3, 42, drop_last=True), net()
    simple = dist.SimpleTrainer(dist.TrainingConfig(max_grad_norm=None), sgd(exact.named_parameters()))
    expected = []
    for rows in (*order, *order):
        loss = exact.loss(Tensor(x[rows]), Tensor(y[rows]))
        expected.append(made(simple.step(exact.named_parameters(), loss.backward(), loss.item())).loss)
    trainer = Trainer.setup(net().to(device=device), lambda device: net(), sgd)
    assert trainer.set_data_loader((x, y), 3, resident=resident) is trainer

    def loss_there(model: Net, *rows: Tensor) -> Tensor:
        assert all(tensor.device.type == device for tensor in rows)
        return model.loss(*rows)

    got = [metrics.loss for epoch in range(2) for metrics in trainer.epoch(epoch, loss_there)]
    np.testing.assert_allclose(got, expected, rtol=0 if device == "cpu" else 1e-9)


def test_a_data_loader_ends_an_epoch_with_what_el_che_has_and_without_one_there_is_no_epoch() -> None:
    with setup(2, DdpConfig()) as trainer:
        raises(RuntimeError, "call set_data_loader first", lambda: list(trainer.epoch(0, loss_of)))
        trainer.set_data_loader(tuple(t.numpy() for t in batch(rows=10)), 2)
        assert [metrics.step for metrics in trainer.epoch(0, loss_of)] == [1]
