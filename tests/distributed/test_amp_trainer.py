"""AmpTrainer: float32 where it matters, one decision on all ranks, and boostr's defects mended, each with a test."""

import math

import numpy as np
import pytest
from in_threads import in_threads
from refusals import raises
from replica_models import Normed

import minigrad
from minigrad import GradStore, Tensor, autocast, bfloat16, distributed as dist, float16, float32, float64, nn
from minigrad.distributed import MixedPrecisionConfig
from minigrad.optim import SGD, AdamW, LinearWarmup, LossScaleStrategy, NonFiniteGradientError

PLAIN = dist.TrainingConfig(max_grad_norm=None)
BOTH = pytest.mark.parametrize(
    "precision", [MixedPrecisionConfig.bf16(), MixedPrecisionConfig.fp16()], ids=["bf16", "fp16"]
)


class Line(nn.Module):
    """loss = 1e-3 mean(x w): the gradient is 1e-3 mean(x), computed in the half dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(np.full((4, 1), 1e-3, np.float32))

    def loss(self, x) -> Tensor:
        return (Tensor(np.asarray(x, np.float32)) @ self.weight).float().mean() * 1e-3


SMALL, HUGE = np.full((1, 4), 1e-4), np.full((1, 4), 6e4)  # HUGE is finite in the forward pass, and * scale in no half


def fp16(strategy: LossScaleStrategy) -> MixedPrecisionConfig:
    return MixedPrecisionConfig(float16, loss_scale=strategy)


def line(strategy, comm=None, accum=1, lr=1.0) -> tuple[Line, dist.AmpTrainer]:
    net = Line()
    config = PLAIN.with_grad_accum_steps(accum)
    return net, dist.AmpTrainer(config, fp16(strategy), comm, SGD(net.named_parameters(), lr=lr))


def feed(trainer: dist.AmpTrainer, net: nn.Module, *batch) -> dist.TrainingMetrics | None:
    with trainer.autocast():
        loss = net.loss(*batch)
    return trainer.backward_and_step(loss, net.named_parameters())


def taken_off(net: Line) -> np.ndarray:
    """What SGD of learning rate 1 has subtracted."""
    return 1e-3 - net.weight.detach().double().numpy()


# ------------------------------------------------------------------ boostr's defects


def test_defect_gradients_are_unscaled_in_float32() -> None:
    # float16 rounds 1e-7 to 1.2e-7, which is what unscaling in float16 would bring back.
    net, trainer = line(LossScaleStrategy.dynamic())
    with trainer.autocast():
        loss = net.loss(SMALL)
    grads = trainer.scale_loss(loss).backward()
    assert grads[net.weight].dtype == float32
    assert trainer.step(net.parameters(), grads, loss.item()) is not None
    np.testing.assert_allclose(taken_off(net), 1e-7, rtol=3e-3)
    net, plain = line(LossScaleStrategy.none())
    assert feed(plain, net, SMALL) is not None
    assert abs(taken_off(net) - 1e-7).max() > 1e-8


@pytest.mark.parametrize("world", [1, 2])
@in_threads("world", timeout=20)
def test_defect_an_overflow_leaves_out_the_whole_window(comm: dist.Communicator, world: int) -> None:
    net, trainer = line(LossScaleStrategy.dynamic(65536.0), comm, accum=2)
    for batch in (HUGE, SMALL, SMALL, HUGE):
        assert feed(trainer, net, batch) is None
    assert (trainer.skipped_steps, trainer.global_step, trainer.loss_scale) == (2, 0, 16384.0)
    assert (taken_off(net) == 1e-3 - np.float64(np.float32(1e-3))).all()
    assert feed(trainer, net, SMALL) is None
    metrics = feed(trainer, net, 3 * SMALL)
    assert metrics is not None and metrics.step == 1
    np.testing.assert_allclose(taken_off(net), 2e-7, rtol=3e-3)


@pytest.mark.parametrize("bucket", [1, 2**20])
def test_defect_an_overflow_on_one_rank_is_one_on_all(bucket: int) -> None:
    def body(comm: dist.Communicator) -> tuple[float, int, bytes]:
        net = Line()
        optimizer = AdamW(net.named_parameters(), lr=1e-3)
        trainer = dist.AmpTrainer(PLAIN, MixedPrecisionConfig.fp16(), comm, optimizer, bucket_size_bytes=bucket)
        made = [feed(trainer, net, HUGE if comm.rank == 1 and step == 1 else SMALL) for step in range(3)]
        assert [m is None for m in made] == [False, True, False]
        assert (optimizer.timestep, trainer.global_step, trainer.skipped_steps) == (2, 2, 1)
        trainer.assert_replicas_identical(net.named_parameters())
        return trainer.loss_scale, trainer.skipped_steps, net.weight.data.tobytes()

    found = dist.run_threads(2, body, timeout=20)
    assert found[0] == found[1] and found[0][0] == 32768.0


@pytest.mark.parametrize("world", [1, 2])
@in_threads("world", timeout=20)
def test_defect_growth_counts_optimizer_steps(comm: dist.Communicator, world: int) -> None:
    net, trainer = line(LossScaleStrategy.dynamic(256.0, growth_interval=2), comm, accum=3)
    scales = []
    for _ in range(12):
        feed(trainer, net, SMALL)
        scales.append(trainer.loss_scale)
    assert scales == [256.0] * 5 + [512.0] * 6 + [1024.0]


def test_defect_the_scale_has_a_floor_and_what_overflows_there_raises() -> None:
    net, trainer = line(LossScaleStrategy.dynamic(2.0))
    grads = GradStore()

    def overflow() -> dist.TrainingMetrics | None:
        grads.insert(net.weight, Tensor(np.full((4, 1), np.inf, np.float32)))
        return trainer.step(net.parameters(), grads, 1.0)

    assert overflow() is None and trainer.loss_scale == 1.0
    raises(NonFiniteGradientError, "step 1", lambda: overflow())
    assert (trainer.loss_scale, trainer.skipped_steps, trainer.global_step) == (1.0, 1, 0)
    net, trainer = line(LossScaleStrategy.none())
    raises(NonFiniteGradientError, "", overflow)


def test_defect_master_weights_and_moments_are_float32() -> None:
    net = nn.Linear(2, 2)
    trainer = dist.AmpTrainer()
    x = minigrad.ones(1, 2)
    with trainer.autocast():
        loss = net(x).float().sum()
    assert trainer.backward_and_step(loss, net.named_parameters()) is not None
    assert {p.dtype for p in trainer.master_params.values()} == {float32}
    assert set(trainer.master_params) == {p.id for p in net.parameters()}
    arrays, _ = trainer.optimizer.state_dict()
    assert arrays and all(a.dtype == np.float32 for key, a in arrays.items() if "exp_avg" in key or a.ndim)
    for half in (bfloat16, float64):
        other = nn.Linear(2, 2).to(half)
        with pytest.raises(ValueError, match=f"parameter weight is {half}, expected float32"):
            dist.AmpTrainer().step(other.named_parameters(), GradStore(), 1.0)
    raises(ValueError, "master_dtype is float16, expected float32", MixedPrecisionConfig, master_dtype=float16)


@pytest.mark.parametrize("world", [1, 2])
@in_threads("world", timeout=20)
def test_defect_the_scaler_is_saved_and_resumed_exactly(comm: dist.Communicator, world: int) -> None:
    def make() -> tuple[Line, dist.AmpTrainer]:
        net = Line()
        precision = fp16(LossScaleStrategy.dynamic(8192.0, growth_interval=3))
        return net, dist.AmpTrainer(PLAIN, precision, comm, AdamW(net.named_parameters(), lr=1e-3))

    batches = [SMALL, HUGE, HUGE, SMALL, SMALL, 2 * SMALL, HUGE, SMALL, SMALL]
    net, trainer = make()
    for batch in batches:
        feed(trainer, net, batch)
    first, half = make()
    for batch in batches[:4]:
        feed(half, first, batch)
    arrays, meta = half.state_dict(first.named_parameters())
    second, rest = make()
    second.load_state_dict({"weight": first.weight.detach().numpy()})
    rest.load_state_dict(second.named_parameters(), arrays, meta)
    for batch in batches[4:]:
        feed(rest, second, batch)
    assert (rest.loss_scale, rest.skipped_steps) == (trainer.loss_scale, trainer.skipped_steps)
    assert rest.skipped_steps > half.skipped_steps > 0 and rest.global_step == trainer.global_step
    assert second.weight.data.tobytes() == net.weight.data.tobytes()


def test_defect_a_schedule_counts_steps_that_were_made() -> None:
    net = Line()
    trainer = dist.AmpTrainer(PLAIN, MixedPrecisionConfig.fp16(), schedule=LinearWarmup(1.0, 10))
    rates = []
    for batch in (SMALL, HUGE, SMALL, HUGE, SMALL):
        metrics = feed(trainer, net, batch)
        rates.append(None if metrics is None else round(metrics.lr, 6))
    assert rates == [0.1, None, 0.2, None, 0.3]


# ------------------------------------------------------------------ the rest


def make_net() -> Normed:
    minigrad.manual_seed(3)
    return Normed(6, 16, 3)


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng(5)
    xs = [rng.standard_normal((8, 6), dtype=np.float32) for _ in range(steps)]
    return [(Tensor(x), Tensor(np.abs(x[:, :3]).argmax(1))) for x in xs]


def test_in_bfloat16_it_is_simple_trainer_under_autocast_to_the_bit() -> None:
    net, other = make_net(), make_net()
    config = dist.TrainingConfig(learning_rate=1e-2, grad_accum_steps=2)
    trainer, simple = dist.AmpTrainer(config), dist.SimpleTrainer(config)
    for batch in batches(6):
        metrics = feed(trainer, net, *batch)
        with autocast("cpu", bfloat16):
            loss = other.loss(*batch)
        assert simple.step(other.parameters(), loss.backward(), loss.item()) == metrics
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert p.data.tobytes() == q.data.tobytes()


@BOTH
def test_two_ranks_train_as_one(precision: MixedPrecisionConfig) -> None:
    def body(comm: dist.Communicator) -> list[np.ndarray]:
        net = make_net()
        trainer = dist.AmpTrainer(dist.TrainingConfig(learning_rate=1e-2), precision, comm, bucket_size_bytes=100)
        for x, y in batches(4):
            share = slice(comm.rank, None, comm.world_size)
            assert feed(trainer, net, x[share], y[share]) is not None
        trainer.assert_replicas_identical(net.named_parameters())
        return [p.detach().numpy().copy() for p in net.parameters()]

    for a, b in zip(dist.run_threads(1, body, timeout=20)[0], dist.run_threads(2, body, timeout=20)[0], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-2)  # Adam's first steps are lr, whatever the gradient: 4 of 1e-2


def test_a_loss_that_is_not_finite_raises_and_keeps_the_scale() -> None:
    net, trainer = line(LossScaleStrategy.dynamic())
    raises(dist.NonFiniteLossError, "", lambda: feed(trainer, net, np.full((1, 4), np.inf)))
    assert (trainer.loss_scale, trainer.skipped_steps) == (65536.0, 0)


def test_overrides_keep_an_operation_in_float32() -> None:
    net, trainer = make_net(), dist.AmpTrainer()
    x = minigrad.ones(2, 6)

    def dtypes():
        with trainer.autocast():
            return net.first(x).dtype, net.last(minigrad.ones(2, 16)).dtype

    assert dtypes() == (bfloat16, bfloat16)
    trainer.add_fp32_override(net.last.weight)
    assert dtypes() == (bfloat16, float32)
    trainer.set_fp32_overrides([net.first.weight.id])
    assert dtypes() == (float32, bfloat16)
    copies = trainer.compute_params(net.named_parameters())
    assert (copies[net.first.weight.id].dtype, copies[net.last.weight.id].dtype) == (float32, bfloat16)
    trainer.remove_fp32_override(net.first.weight)
    assert dtypes() == (bfloat16, bfloat16)

    trainer.add_fp32_override(net.first.weight)
    with trainer.autocast(), autocast("cpu", float16):  # also within another context
        assert (net.first(x).dtype, net.last(minigrad.ones(2, 16)).dtype) == (float32, float16)


def test_compute_params_carry_gradients_to_the_masters() -> None:
    net, trainer = make_net(), dist.AmpTrainer()
    w = trainer.compute_params(net.parameters())[net.first.weight.id]
    grads = (minigrad.ones(2, 6, dtype=bfloat16) @ w.T).float().sum().backward()
    assert (w.dtype, grads[net.first.weight].dtype) == (bfloat16, float32)
    assert (grads[net.first.weight].numpy() == 2.0).all()


def test_refuses_states_that_do_not_fit() -> None:
    net, trainer = line(LossScaleStrategy.dynamic())
    assert isinstance(trainer.communicator, dist.NoOpCommunicator)
    arrays, meta = trainer.state_dict(net.named_parameters())
    without = {key: value for key, value in meta.items() if key != "scaler"}
    _, unscaled = line(LossScaleStrategy.none())
    for other, state, words in (
        (unscaled, meta, "saved with loss scaling"),
        (trainer, without, "saved without loss scaling"),
        (trainer, {**meta, "scaler": {"scale": math.nan, "good_steps": 0}}, "scale is nan"),
        (trainer, {**meta, "skipped_steps": -1}, "skipped_steps is -1"),
    ):
        raises(ValueError, words, other.load_state_dict, net.named_parameters(), arrays, state)
