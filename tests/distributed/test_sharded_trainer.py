"""What ShardedTrainer's ranks keep and send. That they train as one process does, test_trainers.py says for all."""

import operator
import tracemalloc
from collections import namedtuple
from functools import partial
from pathlib import Path

import data_parallel as dp
import numpy as np
import pytest
import short_set
from ranks import requires_mpi, run_ranks
from refusals import raises

import minigrad
from minigrad import Tensor, distributed as dist, models, nn, optim
from minigrad.distributed.train.units import Units

STAGES = (1, 2, 3)
ALL_STAGES = pytest.mark.parametrize("stage", STAGES)
LAYERS, WIDTH = 8, 256


def loss_of(net: nn.Module, rank: int = 0) -> Tensor:
    x = np.random.default_rng(rank).standard_normal((3, WIDTH))
    return net(Tensor(x, dtype=next(net.parameters()).dtype)).float().square().mean()


def trained(comm, stage, dtype=np.float32, micro_batches=2, accum=1, frozen=0):
    """A model of 524,288 parameters and its trainer; stage 0 is a BucketedTrainer."""
    with minigrad.random.drawing_from(minigrad.random.Generator(1)):
        net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).to(dtype)
    for p in list(net.parameters())[:frozen]:
        p.requires_grad_(False)
    adamw = optim.AdamW([(name, p) for name, p in net.named_parameters() if p.requires_grad], master_weights=True)
    config = dist.TrainingConfig(grad_accum_steps=accum)
    kind, options = (dist.ShardedTrainer, {"stage": stage}) if stage else (dist.BucketedTrainer, {})
    trainer = kind(config, comm, adamw, bucket_size_bytes=WIDTH * WIDTH * 4, **options)
    if stage:
        trainer.shard(net, list(net))
    for _ in range(micro_batches):
        trainer.backward_and_step(loss_of(net, comm.rank), net.named_parameters())
    return net, trainer


# ---------------------------------------------------------------------- memory


def in_use(comm) -> int:
    """Bytes allocated by all ranks together, all of which ask."""
    comm.barrier()
    tracemalloc.reset_peak()
    now = tracemalloc.get_traced_memory()[0]
    comm.barrier()
    return now


def traced(world: int, body) -> list:
    """What ranks return whose memory is traced."""
    tracemalloc.start()
    try:
        return dist.run_threads(world, body, timeout=30)
    finally:
        tracemalloc.stop()


def peak_of(comm, act) -> int:
    """Bytes that are allocated at most on all ranks, which do this together."""
    before = in_use(comm)
    act()
    comm.barrier()
    return tracemalloc.get_traced_memory()[1] - before


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", [np.float32, minigrad.bfloat16], ids=str)
@ALL_STAGES
def test_a_rank_keeps_what_the_paper_says(stage, dtype, world):
    """Table 1 of Rajbhandari et al. (2020), with 2 + 2 + 12 bytes in mixed precision, and 4 + 4 + 8 in float32. What
    the report says of each kind, and what is allocated on all ranks together."""
    psi = LAYERS * WIDTH * WIDTH
    weight, states = (4, 8) if dtype == np.float32 else (2, 12)
    want = {
        "weights": weight * psi / (1 if stage < 3 else world),
        "gradients": weight * psi / (1 if stage < 2 else world),
        "optimizer": states * psi / world,
    }

    def body(comm: dist.ThreadCommunicator) -> None:
        before = in_use(comm)
        net, trainer = trained(comm, stage, dtype)
        assert in_use(comm) - before == pytest.approx(world * sum(want.values()), rel=0.05)
        report = trainer.memory_report(net, lambda: loss_of(net))
        assert {kind: getattr(report, kind) for kind in want} == pytest.approx(want, rel=0.05)
        assert "gradients" in str(report)

    dist.run_threads(2, partial(trained, stage=1, dtype=dtype), timeout=30)  # what is compiled takes memory, too
    traced(world, body)


@pytest.mark.parametrize("stage", [2, 3])
def test_no_rank_has_whole_gradients_or_weights_also_between_micro_batches(stage):
    def peak(comm: dist.ThreadCommunicator) -> int:
        net, trainer = trained(comm, stage, micro_batches=4, accum=3)
        step = lambda: trainer.backward_and_step(loss_of(net), net.named_parameters())  # noqa: E731
        return peak_of(comm, lambda: [step(), step()])

    assert max(traced(2, peak)) / (2 * 4 * WIDTH * WIDTH) < 5 < LAYERS


def test_a_save_that_is_waited_for_copies_nothing(tmp_path):
    def peak(comm: dist.ThreadCommunicator) -> int:
        saved = (tmp_path, *trained(comm, 3), {"step": 2})
        return peak_of(comm, lambda: dist.save_sharded_checkpoint(*saved))

    assert max(traced(2, peak)) < 2e6  # weights and moments have 6.3e6 bytes


def test_frozen_weights_are_whole_on_each_rank():
    def body(comm: dist.ThreadCommunicator) -> float:
        net, trainer = trained(comm, 3, frozen=3)
        return trainer.memory_report(net, lambda: loss_of(net)).weights / (4 * WIDTH * WIDTH)

    assert dist.run_threads(2, body, timeout=30) == pytest.approx([3 + 5 / 2] * 2, rel=1e-3)


# ---------------------------------------------------------------------- bytes


def sent_in_a_step(comm, stage) -> int:
    net, trainer = trained(comm, stage)
    before = comm.stats.wire_bytes
    trainer.backward_and_step(loss_of(net, comm.rank), net.named_parameters())
    return comm.stats.wire_bytes - before


@pytest.mark.parametrize("world", [2, 4])
def test_a_step_sends_as_many_bytes_as_the_all_reduce_and_in_stage_3_half_as_many_again(world):
    plain, *sharded = [dist.run_threads(world, partial(sent_in_a_step, stage=i), timeout=30)[0] for i in (0, *STAGES)]
    gradients = 4 * LAYERS * WIDTH * WIDTH
    assert gradients * 2 * (world - 1) / world < plain < 1.01 * gradients * 2 * (world - 1) / world
    for stage, sent in zip(STAGES, sharded):
        assert sent < (1.05 if stage < 3 else 1.55) * plain, stage


# ---------------------------------------------------------------------- precision, states


@ALL_STAGES
def test_a_step_that_overflows_in_one_share_is_left_out_on_all_ranks(stage):
    """Else it is AmpTrainer's, to the bit: without clipping nothing is summed in another order."""

    def body(comm: dist.ThreadCommunicator, stage: int) -> tuple:
        net = nn.Linear(6, 1, bias=False)
        net.weight.detach().fill_(0.1)
        config, fp16 = dist.TrainingConfig(max_grad_norm=None), dist.MixedPrecisionConfig.fp16()
        sharded = dist.ShardedTrainer(config, comm, stage=stage or 1, precision=fp16)
        sharded.shard(net, [net])
        trainer, found = sharded if stage else dist.AmpTrainer(config, fp16, comm), []
        for factor in (1.0, 6e4, 2.0):  # of one weight's gradient, which the scale takes beyond 65504
            with trainer.autocast():
                loss = net(Tensor([[1, 1, 1, 1, 1, factor]])).sum() * 1e-3
            found.append(repr(trainer.backward_and_step(loss, net.named_parameters())))
        sharded.gather_full_params()
        return found, trainer.loss_scale, trainer.skipped_steps, net.weight.tolist()

    plain, *others = [dist.run_threads(3, partial(body, stage=i), timeout=30) for i in (0, stage)]
    assert others == [plain] and plain[0][2] == 1


@ALL_STAGES
def test_a_run_goes_on_in_any_stage_on_any_number_of_ranks(stage):
    scenario = dp.Scenario(dp.shares(1, steps=4), clip=0.3)
    want = dp.alone(scenario)

    def part(comm, steps, kind, saved):
        net = scenario.net()
        trainer = dp.make_trainer(kind, comm, clip=0.3)
        params = dict(net.named_parameters())
        if saved is not None:
            net.load_state_dict(saved[0])
            trainer.load_state_dict(params.items(), *saved[1])
        if kind == "stage 3":
            trainer.shard(net, [net])
        for step in steps:
            rows = np.array_split(np.arange(dp.ROWS), comm.world_size)[comm.rank]
            metrics = dp.feed(trainer, net, net.loss(*scenario.batch(step, rows)), len(rows))
        found = dp.record(trainer, net, metrics)
        return (found.weights, trainer.state_dict(params.items())), found

    def run(world, *args):
        return dist.run_threads(world, partial(part, steps=args[0], kind=args[1], saved=args[2]), timeout=30)[0]

    saved, _ = run(3, (0, 1), f"stage {stage}", None)
    for world, kind in [(2, "stage 1"), (3, "stage 2"), (2, "stage 3"), (2, "bucketed"), (1, "stage 2")]:
        again, _ = run(world, (2,), kind, saved)
        dp.assert_same_run([run(4, (3,), f"stage {stage}", again)[1]], want[-1:])
    _, record = run(3, (0, 1, 2, 3), f"stage {stage}", None)
    assert run(3, (2, 3), f"stage {stage}", saved)[1].bits() == record.bits()


def test_trained_weights_stay_in_their_buffers_and_frozen_ones_leave_them():
    """Whatever is read, loaded and swapped."""

    def body(comm: dist.ThreadCommunicator) -> None:
        net, trainer = trained(comm, 2)
        a, c, place, ema = net[0].weight, net[1].weight, net[0].weight.data, optim.EMA(net)
        c.detach().fill_(2.0)
        with ema.applied():  # averages of about 0
            trainer.load_state_dict(net.named_parameters(), *trainer.state_dict(net.named_parameters()))
        a.data, c.data = c.data, a.data
        for trains in (True, False):
            a.requires_grad_(trains)
            trainer.backward_and_step(loss_of(net), net.named_parameters())
            assert np.shares_memory(a.data, place) == trains
            assert [round(p.mean().item()) for p in (a, c)] == [2, 0]

    dist.run_threads(2, body, timeout=30)


# ---------------------------------------------------------------------- weights of blocks


@pytest.mark.parametrize("options", [{}, {"tied": False}, {"checkpoint_blocks": True}], ids=str)
@pytest.mark.parametrize("world", [2, 3])
def test_blocks_are_gathered_forward_and_backward(world, options):
    """Five blocks in two buffers, a head that is or is not the embedding; each step of two micro-batches."""
    nets = []
    for _ in range(world + 1):
        minigrad.manual_seed(3)
        nets.append(models.GPT2(models.GPT2Config(37, 8, n_layer=5, n_head=2, n_embd=16, **options)).double())
    tokens = np.random.default_rng(3).integers(0, 37, (3, 2, 3, 9))  # of a step and micro-batch
    config = dist.TrainingConfig(0.01, max_grad_norm=0.5, grad_accum_steps=2)

    def body(comm, net, trainer) -> list[dp.Record]:
        params, records = list(net.named_parameters()), []
        if isinstance(trainer, dist.ShardedTrainer):
            trainer.shard(net)
        for batches in tokens:
            for rows in batches:
                x = rows[comm.rank :: comm.world_size]
                loss = net.loss(Tensor(x[:, :-1]), Tensor(x[:, 1:]))
                metrics = dp.feed(trainer, net, loss, len(x), params)
            records.append(dp.record(trainer, net, metrics))
            with minigrad.no_grad():
                assert np.isfinite(net.loss(Tensor(rows[:, :-1]), Tensor(rows[:, 1:])).item())
        return records

    want = body(dist.NoOpCommunicator(), nets[-1], dist.SimpleTrainer(config))
    make = partial(dist.Zero3Trainer, config)
    for got in dist.run_threads(world, lambda comm: body(comm, nets[comm.rank], make(comm)), timeout=30):
        dp.assert_same_run(got, want)


@pytest.mark.parametrize("ends", ["full", "no_sync"])
@pytest.mark.parametrize("windows", [*dp.PRESENCE.values(), *(dp.shares(len(s), accum=3, sizes=s) for s in dp.SIZES)])
def test_blocks_of_which_not_all_ranks_use_the_same(windows, ends):
    """Gradients that some ranks do not have, or micro-batches of weight 0, change no collective's place."""
    scenario = dp.Scenario(windows, clip=0.3, accum=len(windows[0][0]), blocks=4, frozen=("bias", "unused"), ends=ends)
    dp.assert_same_run(dp.run("stage 3", scenario), dp.alone(scenario))


Named = namedtuple("Named", "x also")
OUTPUTS = {  # of a block, and how the next one takes it
    "dict": (lambda y: {"x": y, "also": None}, operator.itemgetter("x")),
    "list": (lambda y: [y, 3], operator.itemgetter(0)),
    "namedtuple": (lambda y: Named(y, "tanh"), operator.attrgetter("x")),
    "nest": (lambda y: ({"x": [y]}, y * 0), lambda y: y[0]["x"][0] + y[1]),
    "dataclass": (lambda y: dp.Share(y), operator.attrgetter("rows")),
}
ORDERS = {"twice": [0, 1, 2, 3, 0, 1, 2, 3], "reversed": [3, 2, 1, 0], "mixed": [2, 0, 3, 0, 1, 2]}
ORDERS |= {"changing": ORDERS["reversed"], 0: range(4), 1: ORDERS["mixed"], 2: ORDERS["twice"]}  # of a step
MODELS = ["bf16", "norms", "not finite", "two calls", "side by side", *list(OUTPUTS)[:-1], *list(ORDERS)[:4]]


class Block(nn.Sequential):
    def forward(self, h: Tensor) -> object:
        return self.give(super().forward(h))


def blocks_trained(comm, stage: int, kind: str) -> dict[str, np.ndarray]:
    """Losses, norms, weights and buffers of three steps. Norms need the whole batch on each rank."""
    norm, half = partial(nn.BatchNorm1d, 4) if kind == "norms" else nn.Identity, kind == "bf16"
    with minigrad.random.drawing_from(minigrad.random.Generator(1)):
        blocks = nn.ModuleList([Block(nn.Linear(4, 4), norm(), nn.Tanh()) for _ in range(4)])
    blocks.to(np.float32 if half else np.float64)
    Block.give, take = map(staticmethod, OUTPUTS.get(kind, (lambda y: y, lambda y: y)))
    named, config = list(blocks.named_parameters()), dist.TrainingConfig(max_grad_norm=1.0)
    precision = dist.MixedPrecisionConfig.bf16() if half else None
    trainer = dist.ShardedTrainer(config, comm, optim.SGD(named, lr=0.5), stage=stage, precision=precision)
    trainer.shard(blocks, list(blocks))
    found, last = [], comm.rank == comm.world_size - 1

    def run(x: Tensor) -> Tensor:
        if kind == "side by side":
            return sum(block(x) for block in blocks)
        for i in ORDERS[step] if kind == "changing" else ORDERS.get(kind, range(4)):
            x = take(blocks[i](x))
        return x

    for step, spoiled in [(0, False), *[(1, True)] * (kind == "not finite"), (1, False), (2, False)]:
        x = np.random.default_rng(step).standard_normal((7, 4))
        x = Tensor(x if kind == "norms" else x[comm.rank :: comm.world_size], dtype=named[0][1].dtype)
        with trainer.autocast():
            y = run(x)
            assert half == (y.dtype == minigrad.bfloat16)
            loss = (y * run(x * 0.5) if kind == "two calls" else y**2).to(x.dtype).mean()
            loss = loss + ((y - y.detach()) ** 2).sqrt().sum() if spoiled and last else loss  # whose derivative is NaN
        make = partial(trainer.backward_and_step, loss, named, len(x))
        if spoiled:
            raises(optim.NonFiniteGradientError, "step 2.*: the gradient norm is nan", make)
        else:
            found.append(make())
    with dp.gathered(trainer):
        arrays = {name: x.numpy().astype(float) for name, x in blocks.state_dict().items()}
    return {"metrics": np.array([[metrics.loss, metrics.grad_norm] for metrics in found]), **arrays}


def assert_blocks_train_as_in_one_process(comm, stage: int, kind: str) -> None:
    want, got = blocks_trained(dist.NoOpCommunicator(), 1, kind), blocks_trained(comm, stage, kind)
    for name, array in want.items():
        dp.assert_close(got[name], array, 2**-8 if kind == "bf16" else 1e-12, name)


@pytest.mark.parametrize(("stage", "kind"), short_set.pairs(STAGES, MODELS))
def test_blocks_train_as_in_one_process(kind, stage):
    """In bfloat16, with buffers, whatever blocks return, and in whatever order they are called."""
    dist.run_threads(2, lambda comm: assert_blocks_train_as_in_one_process(comm, stage, kind), timeout=30)


def test_blocks_whose_weights_would_not_be_there_are_refused():
    def body(comm: dist.ThreadCommunicator) -> None:
        told = "block 0, a Block, returns a Share; expected tensors"
        raises(TypeError, told, blocks_trained, comm, 3, "dataclass")
        net, trainer = trained(comm, 3, micro_batches=0)
        x = minigrad.ones(3, WIDTH)
        aside = net[2](net[1](x) @ net[1].weight)
        step = partial(trainer.backward_and_step, params=list(net.named_parameters()))
        raises(RuntimeError, "weights of block 1 by another way", step, aside.sum())

    dist.run_threads(2, body, timeout=30)


def assert_an_order_of_its_own_is_refused(comm, steps: int, order: list[int]) -> None:
    net, trainer = trained(comm, 3, micro_batches=steps)
    mine = nn.Sequential(*[net[i] for i in order]) if comm.rank == 1 else net
    step = lambda: trainer.backward_and_step(loss_of(mine), net.named_parameters())  # noqa: E731
    raises(dist.CollectiveMismatchError, r"rank 0 called \S+ of block \d, .*; rank 1 called \S+ of block \d, ", step)


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("order", [[*range(7, -1, -1)], [0, 1, 2, 3, 4, 5, 7, 6], [*range(8), 3], [*range(7)]], ids=str)
def test_a_rank_with_an_order_of_blocks_of_its_own_ends_the_step_of_all(order, steps):
    """In the first step and later, by one error that says what it did."""
    dist.run_threads(3, partial(assert_an_order_of_its_own_is_refused, steps=steps, order=order), timeout=30)


def test_the_next_unit_is_on_its_way_while_one_is_used(monkeypatch):
    before = Units._before

    def using(units, i, *call) -> None:
        there = {*units.holders.values()}
        before(units, i, *call)
        begun = [units.all.index(unit) for unit in units.all if unit in {*units.holders.values()} - there]
        vars(units).setdefault("events", []).extend([*begun, -i])

    monkeypatch.setattr(Units, "_before", using)

    def body(comm: dist.ThreadCommunicator) -> list[int]:
        return trained(comm, 3, micro_batches=1)[1]._shares.units.events

    forward = [0, 1, 0, 2, -1, 3, -2, 4, -3, 5, -4, 6, -5, 7, -6, 8, -7, -8]  # i: begun to gather, -i: used; 0 the rest
    backward = [-8, 6, -7, 5, -6, 4, -5, 3, -4, 2, -3, 1, -2, -1]
    assert dist.run_threads(2, body, timeout=30) == [forward + backward] * 2


def test_weights_that_are_not_gathered_are_nan_and_what_was_written_to_whole_ones_stays():
    def body(comm: dist.ThreadCommunicator) -> None:
        net, trainer = trained(comm, 3)
        assert all(p.isnan().all() and p.shape == (WIDTH, WIDTH) for p in net.parameters())
        loss = loss_of(net)
        trainer.gather_full_params()
        for p in net.parameters():
            p.detach().copy_(minigrad.eye(WIDTH))
        trainer.release_params()
        raises(RuntimeError, "before the weights were changed or gathered", loss.backward)
        whole = minigrad.ones(1, WIDTH)
        assert net(whole).equal(whole) and net[0].weight.isnan().all()

    dist.run_threads(2, body, timeout=30)


# ---------------------------------------------------------------------- what is refused


def test_boostrs_names_are_the_stages():
    trainers = (dist.ZeroTrainer, dist.Zero2Trainer, dist.Zero3Trainer)
    stages = dist.run_threads(2, lambda comm: [trainer(None, comm).stage for trainer in trainers], timeout=30)
    assert stages == [[1, 2, 3]] * 2


def test_stage_3_is_told_of_its_model():
    def body(comm: dist.ThreadCommunicator) -> None:
        net, trainer = nn.Linear(2, 2), dist.Zero3Trainer(None, comm)
        trainer.broadcast_params(net.named_parameters())
        step = lambda: trainer.backward_and_step(net(minigrad.ones(1, 2)).sum(), net.named_parameters())  # noqa: E731
        raises(RuntimeError, r"call trainer.shard\(model\) first", step)
        trainer.shard(net, [net])
        assert step() is not None
        net.bias.requires_grad_(False)
        raises(ValueError, "other parameters are trained", step)

    dist.run_threads(2, body, timeout=30)


def test_ranks_in_different_stages_say_so_and_do_not_hang():
    def body(comm: dist.ThreadCommunicator) -> None:
        p, trainer = nn.Parameter(minigrad.ones(4)), dist.ShardedTrainer(None, comm, stage=1 + comm.rank)
        raises(dist.CollectiveMismatchError, "is 2 on rank 1, 1 on rank 0", trainer.backward_and_step, p.sum(), [p])

    dist.run_threads(2, body, timeout=30)


# ---------------------------------------------------------------------- processes

PROGRAM = """
import sys
from dataclasses import replace
sys.path[:0] = sys.argv[1:3]
import data_parallel as dp
import test_sharded_trainer as here
from minigrad.distributed import MpiCommunicator
from minigrad.distributed.comm.mpi.exchange import Mail

comm = MpiCommunicator(timeout=30)
W = comm.world_size
for stage in here.STAGES:
    for scenario in dp.configurations(W):
        scenario = replace(scenario, blocks=2 * (stage == 3))
        dp.assert_same_run(dp.train(comm, f"stage {stage}", scenario, 16), dp.alone(scenario))
    for kind in here.MODELS:
        here.assert_blocks_train_as_in_one_process(comm, stage, kind)
    begin, sent = Mail._begin, []
    def counted(mail, move, array, peer):
        sent.append(array.nbytes if "Isend" in repr(move) else 0)
        return begin(mail, move, array, peer)
    net, trainer = here.trained(comm, stage)
    before, Mail._begin = comm.stats.wire_bytes, counted
    trainer.backward_and_step(here.loss_of(net, comm.rank), net.named_parameters())
    Mail._begin = begin
    counts = comm.stats.wire_bytes - before
    assert abs(sum(sent) - counts) < 0.01 * counts, (sum(sent), counts)
here.assert_an_order_of_its_own_is_refused(comm, 1, [*range(7), 0])
comm.close()
print("passed")
"""


@pytest.mark.long
@requires_mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_train_as_one_does_and_send_what_is_counted(ranks):
    here = Path(__file__).parent
    result = run_ranks(ranks, PROGRAM, here.parent, here, timeout=120, returncode=0)
    assert result.stdout.count("passed") == ranks
