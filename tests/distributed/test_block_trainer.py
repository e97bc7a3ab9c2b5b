"""BlockDistributedTrainer: ranks step as one process with the whole batch, stay equal, fail together, and resume."""

import math
import os
from functools import partial

import block_trainer_nets as nets
import numpy as np
import pytest
from data_parallel import state_bits
from in_threads import in_threads
from refusals import raises

import minigrad
from minigrad import Tensor, distributed as dist, models, nn, optim
from minigrad.distributed.train.blocks import non_finite
from minigrad.metrics_log import read_json_lines
from minigrad.optim import SGD
from minigrad.serialization import CheckpointError


def test_must_config_fits_the_communicator():
    assert dist.DistributedTrainConfig(2, 1, role="worker", backend="cuda", coordinator_addr="[::1]:9000").rank == 1
    assert dist.DistributedTrainConfig(2).is_coordinator and not dist.DistributedTrainConfig(2, 1).is_coordinator
    of_another = partial(dist.BlockDistributedTrainer, config=dist.DistributedTrainConfig(2))
    raises(ValueError, "the communicator's that of rank 0 of 1", of_another, nets.Net(), dist.NoOpCommunicator())


def test_a_trainer_knows_when_its_steps_are_made():
    trainer = dist.BlockDistributedTrainer(nets.Net(), dist.NoOpCommunicator(), max_steps=2)
    reached = [(trainer.train_batch(*nets.batch(0)), trainer.reached_max_steps)[1] for _ in range(2)]
    assert reached == [False, True] and (trainer.rank, trainer.world_size) == (0, 1)


def test_must_start_sync_gives_all_rank_0s_weights_and_buffers():
    def body(comm: dist.ThreadCommunicator):
        net = nets.Net(seed=comm.rank)
        net.blocks[1].statistic.mean.data[...] = comm.rank + 5.0
        dist.BlockDistributedTrainer(net, comm)
        return nets.held(net)

    want = nets.Net(seed=0)
    want.blocks[1].statistic.mean.data[...] = 5.0
    assert dist.run_threads(3, body, timeout=20) == [nets.held(want)] * 3


def test_must_sharding_vectors_are_disjoint_and_complete():
    for n, world, want in [
        (10, 2, [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]),
        (7, 3, [[0, 3, 6], [1, 4], [2, 5]]),
        (5, 1, [[0, 1, 2, 3, 4]]),
        (2, 4, [[0], [1], [], []]),
    ]:
        found = [list(dist.shard_batches(n, rank, world)) for rank in range(world)]
        assert found == want and sorted(i for one in found for i in one) == list(range(n))


@in_threads(3, timeout=20)
def test_must_weight_identity_after_every_step_and_when_broken(comm: dist.ThreadCommunicator):
    net = nets.Net(dtype=np.float32)
    nets.train(comm, net, (5, 4, 3))  # verifies after each step
    trainer = dist.BlockDistributedTrainer(net, comm)
    if comm.rank == 2:
        net.blocks[1].weight.data[0, 0] += 1e-3
    error = raises(dist.ReplicaMismatchError, "blocks.1.weight", trainer.verify_replicas)
    assert error.ranks == (2,)
    net.blocks[1].weight.data[0, 0] = 0
    net.blocks[0].statistic.mean.data[0] = comm.rank
    raises(dist.ReplicaMismatchError, "blocks.0.statistic.mean", trainer.verify_replicas)


def test_must_mean_semantics_means_of_1_and_5_with_3_and_1_samples_give_2():
    def body(comm: dist.ThreadCommunicator):
        net = nets.One()
        optimizer = SGD([net.blocks[0].weight], lr=1.0)
        trainer = dist.BlockDistributedTrainer(net, comm, dist.TrainingConfig(max_grad_norm=None), optimizer=optimizer)
        trainer.train_batch(np.ones(3) if comm.rank == 0 else np.full(1, 5.0))
        return net.blocks[0].weight.item()

    assert dist.run_threads(2, body, timeout=20) == [-2.0, -2.0]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("sizes", [(12,), (6, 6), (10, 2), (0, 11, 1)], ids=str)
def test_must_mean_semantics_ranks_are_one_process_on_the_whole_batch(sizes, tied):
    want = nets.alone(nets.Net(tied=tied))
    body = lambda comm: nets.train(comm, nets.Net(comm.rank, tied=tied), sizes)  # noqa: E731
    for got in dist.run_threads(len(sizes), body, timeout=20):
        nets.assert_like_one_process(got, want)
        assert got[1]["blocks.0.statistic.seen"] == 4
        assert np.abs(got[1]["blocks.2.statistic.mean"]).max() > 0.01


def test_must_all_parameters_are_reduced_exactly_once_also_frozen_and_missing_ones():
    def net(seed: int = 0) -> nets.Net:
        made = nets.Net(seed, tied=True)
        for p in (made.blocks[1].weight, made.norm.weight):
            p.requires_grad_(False)
        return made

    want, start = nets.alone(net()), nets.contents(net())

    def body(comm: dist.ThreadCommunicator):
        sent: list[int] = []
        return nets.train(comm, net(comm.rank), (7, 5), hook=nets.noting(sent)), sent

    for got, sent in dist.run_threads(2, body, timeout=20):
        nets.assert_like_one_process(got, want)
        # blocks 2, 1 (its weight is frozen) and 0, what follows them (norm is frozen), the tied embedding: each once
        assert sent == [nets.C * nets.C + 1, 1, nets.C * nets.C + 1, 2, 5 * nets.C] * 4
        for name in ("blocks.1.weight", "norm.weight", "unused.weight"):
            assert np.array_equal(got[1][name], start[name])


@pytest.mark.parametrize("communicator", [dist.NoOpCommunicator, lambda: dist.ThreadCommunicator.group(1)[0]])
@pytest.mark.parametrize("accum", [1, 3])
def test_must_world_1_is_simple_trainer_bit_for_bit(communicator, accum):
    net, other = nets.Net(dtype=np.float32), nets.Net(dtype=np.float32)
    config = dist.TrainingConfig(0.02, max_grad_norm=0.5, grad_accum_steps=accum)
    block, simple = dist.BlockDistributedTrainer(net, communicator(), config), dist.SimpleTrainer(config)
    for step in range(3 * accum):
        x, y = nets.batch(step, slice(0, 11), np.float32)  # 11: times 11 and divided by it is another number
        loss = other.loss(Tensor(x), Tensor(y))
        assert block.train_batch(x, y) == simple.step(other.named_parameters(), loss.backward(), loss.item())
    got, want = state_bits(block, net), state_bits(simple, other)
    assert got == (*want[:2], {**got[2], **want[2]}) and block.communicator.stats.operations == 0
    assert nets.held(net) == nets.held(other)


def test_must_accumulation_is_one_batch_one_reduction_and_a_clip_after_it():
    want = nets.alone(nets.Plain())
    assert all(m.grad_norm > 0.5 for m in want[0]), "the clip must act"

    def body(comm: dist.ThreadCommunicator):
        sent: list[int] = []
        return nets.train(comm, nets.Plain(comm.rank), (7, 5), accum=3, hook=nets.noting(sent)), len(sent)

    for got, sent in dist.run_threads(2, body, timeout=20):
        nets.assert_like_one_process(got, want)
        assert sent == 4 * 7  # 4 windows of 3 micro-batches, 7 buckets


def test_must_accumulation_window_ends_with_the_data():
    def body(comm: dist.ThreadCommunicator):
        net, config = nets.Net(comm.rank), dist.TrainingConfig(0.02, max_grad_norm=0.5, grad_accum_steps=5)
        trainer = dist.BlockDistributedTrainer(net, comm, config)
        if comm.rank == 0:
            assert trainer.train_batch(*nets.batch(0)) is None  # the other rank has nothing left
        metrics = trainer.finish_window()
        trainer.verify_replicas()
        assert trainer.finish_window() is None
        return [metrics], nets.contents(net)

    want = nets.alone(nets.Net(), steps=1)
    for got in dist.run_threads(2, body, timeout=20):
        nets.assert_like_one_process(got, want)


def test_buffers_are_averaged_by_the_samples_of_the_whole_window():
    def body(comm: dist.ThreadCommunicator):
        net = nets.One()
        net.register_buffer("value", Tensor(np.zeros(2, np.float32)))
        net.register_buffer("count", Tensor(np.zeros((), np.int64)))
        net.register_buffer("scratch", Tensor(np.zeros(1)), persistent=False)

        def loss(x: Tensor) -> Tensor:
            net.value.fill_(1.0 + comm.rank)
            net.count.fill_(5 - comm.rank)
            net.scratch.fill_(comm.rank)
            return (net.blocks[0].weight * x).mean()

        trainer = dist.BlockDistributedTrainer(net, comm, dist.TrainingConfig(grad_accum_steps=2), loss_fn=loss)
        for count in (6, 1) if comm.rank == 0 else (2, 3):
            trainer.train_batch(np.ones(count))
        trainer.verify_replicas()
        return net.value.numpy().tolist(), net.count.item(), net.scratch.item()

    mean = float(np.float32((7 * 1.0 + 5 * 2.0) / 12))
    assert dist.run_threads(2, body, timeout=20) == [([mean] * 2, 5, 0.0), ([mean] * 2, 5, 1.0)]


# ---------------------------------------------------------------------- which block is sent when


def test_must_order_is_reversed_and_a_block_is_sent_when_its_backward_ends():
    def body(comm: dist.ThreadCommunicator) -> list[str]:
        net, events = nets.Net(), []

        def hook(communicator: dist.Communicator, bucket: Tensor):
            events.append("sent")
            return dist.all_reduce_hook(communicator, bucket)

        trainer = dist.BlockDistributedTrainer(net, comm, nets.CONFIG, hook=hook)
        assert trainer.layout.names == ["block 2", "block 1", "block 0", "unused", "head", "norm", "embedding"]
        for i, block in enumerate(net.blocks):
            block.told = partial(events.append, f"backward of block {i} ended")
        trainer.train_batch(*nets.batch(0, nets.parts((6, 6), comm.rank)))
        assert trainer.num_buckets == 7
        return events

    for events in dist.run_threads(2, body, timeout=20):
        assert events == [
            *("sent", "backward of block 2 ended", "sent", "backward of block 1 ended"),
            *("sent", "backward of block 0 ended", "sent", "sent", "sent", "sent"),
        ]


def test_must_order_layouts_of_the_models():
    gpt = models.GPT2(models.GPT2Config(vocab_size=7, block_size=4, n_layer=2, n_head=1, n_embd=4, tied=False))
    assert dist.BlockLayout.of(gpt).names == ["block 1", "block 0", "lm_head", "ln_f", "embedding"]
    llama = models.Llama(models.LlamaConfig(7, 4, 3, 1, 1, 4, 8))
    assert dist.BlockLayout.of(llama).names[:3] == ["block 2", "block 1", "block 0"]
    every = [p for model in (gpt, llama) for _, named in dist.BlockLayout.of(model).groups for _, p in named]
    assert sorted(p.id for p in every) == sorted(p.id for model in (gpt, llama) for p in model.parameters())
    raises(ValueError, "Linear has 0 ModuleLists", lambda: dist.BlockLayout.of(nn.Linear(2, 2)))
    raises(ValueError, "blocks is 'x'; GPT2 has the ModuleLists h", dist.BlockLayout.of, gpt, "x")


def test_should_lr_follows_warmup_and_cosine():
    schedule = optim.CosineAnnealing(0.02, 0.0, warmup_steps=2, total_steps=4)
    want = nets.alone(nets.Net(), schedule=schedule)
    for got in dist.run_threads(
        2, lambda comm: nets.train(comm, nets.Net(comm.rank), (8, 4), schedule=schedule), timeout=20
    ):
        nets.assert_like_one_process(got, want)
        assert [m.lr for m in got[0]] == [schedule.get_lr(i) for i in range(4)]


class Half(nn.Module):
    """float32 weights, computed with in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4, bias=False)])

    def loss(self, x: Tensor) -> Tensor:
        return ((x.half() @ self.blocks[0].weight.half()).float() * 1e-7).sum() / len(x)


def test_should_precision_an_overflow_leaves_the_step_out_on_all_ranks_and_the_scaler_is_saved(tmp_path):
    def make(comm: dist.Communicator) -> tuple[Half, dist.BlockDistributedTrainer]:
        net, scaler = Half(), optim.GradScaler(growth_interval=2)
        optimizer = optim.SGD(net.named_parameters(), lr=1e6)
        config = dist.TrainingConfig(max_grad_norm=None)
        return net, dist.BlockDistributedTrainer(net, comm, config, optimizer=optimizer, scaler=scaler)

    def body(comm: dist.ThreadCommunicator) -> None:
        net, trainer = make(comm)
        before = net.blocks[0].weight.data.copy()
        small, huge = np.ones((2, 4), np.float32), np.full((2, 4), 6e4, np.float32)
        assert trainer.train_batch(small) is not None
        np.testing.assert_allclose(before - net.blocks[0].weight.data, 0.1, rtol=2e-2)  # 1e-7 is no normal float16
        before = net.blocks[0].weight.data.copy()
        if comm.rank == 1:  # finite in the forward pass; its gradient times the scale is more than float16 can hold
            trainer._loss_fn = lambda x: (x.half() * net.blocks[0].weight[0].half()).float().sum() * 1e-3
        assert trainer.train_batch(small if comm.rank == 0 else huge) is None
        assert (trainer.global_step, trainer.skipped_steps) == (1, 1)
        assert np.array_equal(net.blocks[0].weight.data, before)
        assert trainer.scaler is not None and trainer.scaler.get_scale() == 32768.0
        trainer._loss_fn = net.loss
        for _ in range(3):
            assert trainer.train_batch(small) is not None
        assert trainer.scaler.state_dict() == {"scale": 65536.0, "good_steps": 1}
        trainer.save_checkpoint(tmp_path)
        _, other = make(comm)
        other.load_checkpoint(tmp_path)
        assert other.scaler is not None and other.scaler.state_dict() == {"scale": 65536.0, "good_steps": 1}
        assert (other.global_step, other.skipped_steps) == (4, 1)

    dist.run_threads(2, body, timeout=20)


@in_threads(2, timeout=20)
def test_should_precision_what_is_no_overflow_still_halts(comm: dist.ThreadCommunicator):
    net = Half()
    trainer = dist.BlockDistributedTrainer(net, comm, nets.CONFIG, scaler=optim.GradScaler(2.0))
    trainer._loss_fn = lambda x: x.sum() * 0.0 + nets.Spoil.apply(net.blocks[0].weight, value=math.nan)
    x = np.ones((1, 4), np.float32)
    assert trainer.train_batch(x) is None
    # At a scale of 1 it is no overflow.
    raises(dist.NonFiniteBlockGradientError, "", trainer.train_batch, x)
    trainer._loss_fn = lambda x: (net.blocks[0].weight * math.nan).sum()
    raises(dist.NonFiniteLossError, "", trainer.train_batch, x)


@pytest.mark.parametrize("accum", [1, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("rank", "name", "group"),
    [(1, "blocks.1.weight", "block 1"), (0, "embedding.weight", "embedding"), (2, "blocks.2.gain", "block 2")],
)
@in_threads(3, timeout=20)
def test_must_non_finite_gradients_halt_every_rank_naming_rank_block_and_step(comm, rank, name, group, value, accum):
    net = nets.Net()
    config = dist.TrainingConfig(0.02, max_grad_norm=None, grad_accum_steps=accum)
    trainer = dist.BlockDistributedTrainer(net, comm, config)
    p, spoiled = dict(net.named_parameters())[name], False

    def loss(x: Tensor, y: Tensor) -> Tensor:
        out = net.loss(x, y)
        return out + nets.Spoil.apply(p, value=value) if spoiled and comm.rank == rank else out

    trainer._loss_fn = loss
    for step in range(3):
        x, y = nets.batch(step, nets.parts((4, 4, 4), comm.rank))
        before = state_bits(trainer, net), nets.held(net)
        for spoiled in [True, False] if step == 1 else [False]:
            for i in range(accum):
                if not spoiled or i + 1 < accum:
                    trainer.train_batch(x, y)
                    continue
                message = rf"step 2: gradients are infinite or NaN on rank {rank}, {group} \({name}\); no weight"
                error = raises(dist.NonFiniteBlockGradientError, message, trainer.train_batch, x, y)
                assert (error.step, error.where) == (2, {rank: {group: [name]}})
                assert (state_bits(trainer, net), nets.held(net)) == before
    trainer.verify_replicas()
    assert trainer.global_step == 3


def test_must_non_finite_in_a_world_of_one_and_in_sums_and_losses():
    net = nets.Net()
    trainer = dist.BlockDistributedTrainer(net, dist.NoOpCommunicator(), nets.CONFIG)
    trainer._loss_fn = lambda x: x.sum() * 0.0 + nets.Spoil.apply(net.blocks[0].weight, value=math.nan)
    with pytest.raises(dist.NonFiniteBlockGradientError, match=r"step 1: .* on rank 0, block 0 \(blocks.0.weight\)"):
        trainer.train_batch(np.ones((2, 5)))

    def body(comm: dist.ThreadCommunicator) -> None:
        one = nets.One(np.float32)
        trainer = dist.BlockDistributedTrainer(one, comm, nets.CONFIG)
        trainer._loss_fn = lambda x: x.sum() * 0.0 + nets.Spoil.apply(one.blocks[0].weight, value=3e38)
        with pytest.raises(dist.NonFiniteBlockGradientError, match="on the ranks' sum, block 0"):
            trainer.train_batch(np.ones(1, np.float32))
        trainer._loss_fn = lambda x: one.blocks[0].weight * 0.0 + (math.nan if comm.rank == 1 else 0.0)
        raises(dist.NonFiniteLossError, "loss of step 1 is nan on rank 1", trainer.train_batch, np.ones(1, np.float32))
        assert one.blocks[0].weight.item() == 0.0

    dist.run_threads(2, body, timeout=20)


def test_what_is_not_finite_is_named():
    grads = {"a": Tensor(np.zeros((2, 3))), "b": Tensor(np.array([0.0, 1e200]))}
    assert non_finite(grads) == []  # 1e200 is finite, its square is not
    grads["b"].data[1] = math.inf
    assert non_finite(grads) == ["b"] and non_finite({}) == []


@pytest.mark.parametrize("what", ["shape", "dtype", "step", "later step", "blocks", "samples"])
@in_threads(2, timeout=20)
def test_must_mismatch_raises_on_every_rank_before_averaging(comm: dist.ThreadCommunicator, what, tmp_path):
    odd = comm.rank == 1
    net = nets.Net(dtype=np.float32 if what == "dtype" and odd else np.float64)
    if what == "shape" and odd:
        net.head.weight = nn.Parameter(Tensor(np.zeros((nets.C, 4))))
    if what in ("shape", "dtype"):
        raises(dist.CollectiveMismatchError, "is .* on rank 1", dist.BlockDistributedTrainer, net, comm)
        return
    if what == "blocks":
        net.others = nn.ModuleList([nn.Linear(2, 2, bias=False)])
        trainer = dist.BlockDistributedTrainer(net, comm, nets.CONFIG, blocks="others" if odd else "blocks")
        raises(dist.CollectiveMismatchError, "the blocks is", lambda: trainer.train_batch(*nets.batch(0)))
        return
    trainer = dist.BlockDistributedTrainer(net, comm, nets.CONFIG)
    if what == "samples":
        x, y = nets.batch(0)
        raises(ValueError, r"one number of samples, not shapes \(12, 5\), \(11, 5\)", trainer.train_batch, x, y[1:])
        return
    if what == "later step":
        trainer.train_batch(*nets.batch(0))
    trainer._step.global_step += odd
    before = nets.held(net)
    raises(dist.CollectiveMismatchError, "the (global step|number of the step) is", trainer.train_batch, *nets.batch(1))
    assert nets.held(net) == before


@pytest.mark.parametrize(("kind", "errors"), [("kill", (dist.PeerLostError,)), ("delay", (dist.CommTimeoutError,))])
@pytest.mark.parametrize("call", [3, 13, 17])
def test_must_peer_loss_and_silence_raise_within_the_deadline(kind, errors, call):
    seen: dict[int, BaseException] = {}

    def body(comm: dist.ThreadCommunicator) -> None:
        net = nets.Net()
        try:
            nets.train(comm, net, (4, 4, 4), steps=6)
        except Exception as error:
            seen[comm.rank] = error
            raise

    with pytest.raises((*errors, dist.RankKilledError)):
        dist.run_threads(3, body, timeout=0.5, fault=dist.FaultPlan([dist.Fault(kind, 1, call, seconds=1.5)], order=0))
    assert isinstance(seen[0], errors) and isinstance(seen[2], errors)


def test_must_checkpoint_resumes_bit_for_bit_on_every_rank(tmp_path):
    def body(comm: dist.ThreadCommunicator, resumes: bool):
        net = nets.Net(9 if resumes else 0, np.float32)
        trainer = dist.BlockDistributedTrainer(net, comm, nets.CONFIG, log=tmp_path / f"log-{resumes}.jsonl")
        if resumes:
            assert trainer.load_checkpoint(tmp_path / "run") == {"note": "x"}
            assert trainer.global_step == 3
            trainer.verify_replicas()
        for step in range(trainer.global_step, 6):
            if step == 3 and not resumes:
                assert trainer.save_checkpoint(tmp_path / "run", {"note": "x"}) == tmp_path / "run/step-00000003"
            trainer.train_batch(*nets.batch(step, nets.parts((7, 5), comm.rank), np.float32))
        return state_bits(trainer, net), nets.held(net)

    straight, resumed = (dist.run_threads(2, partial(body, resumes=resumes), timeout=20) for resumes in (False, True))
    assert straight == resumed
    assert [r["step"] for r in read_json_lines(tmp_path / "log-True.jsonl")] == [4, 5, 6]


def test_must_checkpoint_of_another_dtype_is_not_cast_in_silence(tmp_path):
    for dtype in (np.float64, np.float32):
        net = nets.One(dtype)
        net.blocks[0].weight.data[...] = 1 / 3
        plain = SGD([net.blocks[0].weight], lr=0.1)
        trainer = dist.BlockDistributedTrainer(net, dist.NoOpCommunicator(), nets.CONFIG, optimizer=plain)
        if dtype is np.float64:
            trainer.save_checkpoint(tmp_path)
        else:
            raises(CheckpointError, "does not fit rank 0: the weights' hash is", trainer.load_checkpoint, tmp_path)


def test_must_checkpoint_hashes_every_ranks_weights_and_writes_nothing_if_they_differ(tmp_path):
    def body(comm: dist.ThreadCommunicator) -> None:
        net = nets.Net()
        trainer = dist.BlockDistributedTrainer(net, comm, nets.CONFIG)
        trainer.train_batch(*nets.batch(0))
        trainer.save_checkpoint(tmp_path / "run")
        moment = trainer.optimizer.state[net.norm.weight.id].arrays["exp_avg"]
        for array, name in ((net.norm.weight.data, "'norm.weight'"), (moment, "'exp_avg of norm.weight'")):
            before, array[0] = float(array[0]), array[0] + comm.rank
            raises(dist.ReplicaMismatchError, name, trainer.save_checkpoint, tmp_path / "broken")
            array[0] = before
        trainer.log.sync = lambda: os.fsync(10**6)  # as where the disk of the log is gone
        raises(CheckpointError, "rank 0 could not save: .*descr", lambda: trainer.save_checkpoint(tmp_path / "broken"))

    dist.run_threads(2, body, timeout=20)
    assert not (tmp_path / "broken").exists()
    state = minigrad.serialization.load_checkpoint(tmp_path / "run").state
    assert len(state["weight_hashes"]) == 2 and len(set(state["weight_hashes"])) == 1 and state["world_size"] == 2

    def other(comm: dist.ThreadCommunicator) -> None:
        trainer = dist.BlockDistributedTrainer(nets.Net(dtype=np.float32), comm, nets.CONFIG)
        raises(CheckpointError, "does not fit rank 0", lambda: trainer.load_checkpoint(tmp_path / "run"))
        raises(CheckpointError, "", lambda: trainer.load_checkpoint(tmp_path / "nowhere"))

    dist.run_threads(2, other, timeout=20)


def test_should_launcher_rank_0_writes_loss_norm_tokens_and_communication(tmp_path):
    def body(comm: dist.ThreadCommunicator):
        net = nets.Net(comm.rank)
        trainer = dist.BlockDistributedTrainer(net, comm, nets.CONFIG, log=tmp_path / "log.jsonl", log_every=2)
        made = [trainer.train_batch(*nets.batch(step, nets.parts((7, 5), comm.rank))) for step in range(8)]
        trainer.close()
        return made, comm.stats

    (made, first), (_, second) = dist.run_threads(2, body, timeout=20)
    lines = read_json_lines(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    assert sum(line["waited_by_rank"][0] for line in lines) <= first.waited_s  # each since the line before
    assert sum(line["communication_seconds"] for line in lines) <= first.busy_s + second.busy_s
    for line in lines:
        metrics = made[line["step"] - 1]
        assert (line["loss"], line["grad_norm"], line["lr"]) == (metrics.loss, metrics.grad_norm, metrics.lr)
        assert line["tokens_per_second"] > 0 and line["world_size"] == 2 and line["skipped_steps"] == 0
        assert line["communication_seconds"] > 0 and line["waited_seconds"] == max(line["waited_by_rank"]) >= 0
