"""Checkpoints of which each rank writes its share: the same tensors, whoever wrote them, or an error of all ranks."""

import contextlib
import json
import shutil
import tempfile
import threading
import time
import tracemalloc
import warnings
from functools import partial

import data_parallel as dp
import numpy as np
import pytest
from ranks import on_processes, requires_mpi
from refusals import raises
from test_crash_safety import Killed, each_call

import minigrad
from minigrad import distributed as dist, nn, optim, serialization
from minigrad.distributed.comm.threads.faults import with_flipped_bit
from minigrad.distributed.train.checkpoint import RankShare, by_rank_0
from minigrad.files import durable, shares
from minigrad.serialization import CheckpointError

KINDS = ("distributed", "bucketed", "stage 1", "stage 2", "stage 3", "half")


class Parts(nn.Module):
    """What a checkpoint may meet: uneven sizes, a number, a frozen parameter, a tied one, a buffer, nothing."""

    def __init__(self) -> None:
        super().__init__()
        with minigrad.random.drawing_from(minigrad.random.Generator(5)):
            self.blocks = nn.ModuleList([nn.Linear(5, 3), nn.Linear(3, 5, bias=False)])
        self.gain = nn.Parameter(minigrad.ones(()))
        self.frozen = nn.Parameter(minigrad.full((7,), 0.5), requires_grad=False)
        self.blocks[1].tied = self.gain
        self.register_buffer("count", minigrad.arange(3))
        self.register_buffer("nothing", minigrad.zeros(0, 4))

    def loss(self, x):
        for block in self.blocks:
            x = block(x)
        return ((x * self.gain + self.frozen.sum()) ** 2).mean()


def trained(comm, kind, steps=2):
    net, optimizer = Parts(), None
    if kind == "half":
        optimizer = optim.AdamW(net.to(minigrad.bfloat16).named_parameters(), master_weights=True)
    trainer = dp.make_trainer(kind.replace("half", "stage 3"), comm, bucket=40, optimizer=optimizer)
    if kind in ("stage 3", "half"):
        trainer.shard(net)
    for step in range(steps):
        x = minigrad.tensor(np.random.default_rng([step, comm.rank]).standard_normal((2, 5)), dtype=net.gain.dtype)
        dp.feed(trainer, net, net.loss(x).float())
    return net, trainer


def contents(net, trainer):
    """All that a whole checkpoint holds, as bits; a collective."""
    arrays, meta = trainer.state_dict(net.named_parameters())
    with dp.gathered(trainer):
        model = {name: np.asarray(x.data).copy() for name, x in net.state_dict().items()}
    tensors = {"model": model, "trainer": arrays}
    return bits(tensors), json.loads(json.dumps(meta))


def bits(tensors):
    return {
        (file, name): (x.shape, x.dtype.name, x.tobytes())
        for file, named in tensors.items()
        for name, x in named.items()
    }


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_shares_are_the_whole_tensors_of_any_trainer_on_any_ranks(tmp_path, kind, world):
    """Before the first step and after some, of weights that are gathered or not. ``half`` weights have masters."""

    def body(comm):
        for steps in (0, 2):
            net, trainer = trained(comm, kind, steps)
            for state in (dp.gathered(trainer), contextlib.nullcontext()):
                with state:
                    about = {"step": steps, "note": [comm.rank]}
                    path = dist.save_sharded_checkpoint(tmp_path, net, trainer, about)
                saved = dist.load_distributed_checkpoint(comm, tmp_path, steps)
                assert path == saved.path and saved.state["note"] == [0]
                assert (bits(saved.tensors), saved.state["trainer"]) == contents(net, trainer)
                assert (steps > 0) == bool(saved.tensors["trainer"])
        if comm.rank == 0:
            files = sorted(file.name for file in path.iterdir())
            names = [shares.name_of(stem, rank, world) for stem in ("model", "trainer") for rank in range(world)]
            assert files == sorted(["manifest.json", "state.json", *names])

    dist.run_threads(world, body, timeout=60)


def of_processes(comm) -> str:
    folder = by_rank_0(comm, lambda: tempfile.mkdtemp(), "make a folder", "")
    net, trainer = trained(comm, "stage 3")
    with dist.AsyncCheckpointer() as checkpoints:
        for step in (1, 2):
            checkpoints.save_sharded(folder, net, trainer, {"step": step})
    found, want = dist.load_distributed_checkpoint(comm, folder), contents(net, trainer)
    assert (bits(found.tensors), found.state["trainer"]) == want
    comm.barrier()
    shutil.rmtree(folder, ignore_errors=True)
    return f"step {found.step}"


@requires_mpi
@pytest.mark.long
def test_processes_write_one_checkpoint():
    assert on_processes(2, of_processes).lines(1) == ["step 2"]


FLIPS = {"distributed": "blocks.0.weight", "bucketed": "exp_avg of gain", "stage 1": "gain", "stage 3": "frozen"}


@pytest.mark.parametrize("kind", FLIPS)
def test_a_bit_that_flips_right_before_a_save_is_not_saved(tmp_path, kind):
    """By any function: all ranks are told rank and tensor. Buffers and shares may differ."""

    def body(comm):
        net, trainer = trained(comm, kind)
        net.count.data[0] = comm.rank
        tensors = {"model": net.state_dict(), "trainer": trainer.state_dict(net.named_parameters())[0]}
        whole, shares = (comm, tmp_path, tensors, {"step": 2}), (tmp_path, net, trainer, {"step": 2})
        tensor = dict(trainer._step.reducer.held(trainer._step, [*net.named_parameters()]))[FLIPS[kind]]
        with dist.AsyncCheckpointer() as beside:
            saves = [(dist.save_distributed_checkpoint, whole), (beside.save_distributed, whole)]
            saves += [(dist.save_sharded_checkpoint, shares), (beside.save_sharded, shares)]
            for told in (f"copies of '{FLIPS[kind]}' .* differ: rank 1 against the others", ""):
                if comm.rank == 1:
                    tensor.data[...] = with_flipped_bit(tensor.data, 3)
                for save, given in saves:
                    raises(dist.ReplicaMismatchError, told, save, *given) if told else save(*given)
                comm.barrier()
                assert any(tmp_path.iterdir()) == (not told)
            tensor.data[...] = with_flipped_bit(tensor.data, comm.rank)
            dist.save_distributed_checkpoint(*whole[:3], {"step": 3}, compare=False)

    dist.run_threads(3, body, timeout=60)


def test_a_run_goes_on_from_shares_in_any_stage_on_any_number_of_ranks(tmp_path):
    scenario = dp.Scenario(dp.shares(1, steps=4), clip=0.3)
    want = dp.alone(scenario)

    def part(comm, kind, step):
        net, trainer = scenario.net(), dp.make_trainer(kind, comm, clip=0.3)
        if step:
            saved = dist.load_distributed_checkpoint(comm, tmp_path, step)
            net.load_state_dict(saved.tensors["model"])
            trainer.load_state_dict(net.named_parameters(), saved.tensors["trainer"], saved.state["trainer"])
        if kind == "stage 3":
            trainer.shard(net, [net])
        rows = np.array_split(np.arange(dp.ROWS), comm.world_size)[comm.rank]
        if step:  # also before anything is cut into shares again
            dist.save_sharded_checkpoint(tmp_path, net, trainer, {"step": step}, keep=None)
        metrics = dp.feed(trainer, net, net.loss(*scenario.batch(step, rows)), len(rows))
        dist.save_sharded_checkpoint(tmp_path, net, trainer, {"step": step + 1}, keep=None)
        return dp.record(trainer, net, metrics)

    for step, (world, kind) in enumerate([(3, "stage 2"), (2, "stage 3"), (4, "stage 1"), (1, "bucketed")]):
        got = dist.run_threads(world, partial(part, kind=kind, step=step), timeout=30)[0]
        dp.assert_same_run([got], [want[step]])


def save(comm, folder, step, kind="stage 2", **options) -> None:
    dist.save_sharded_checkpoint(folder, *trained(comm, kind, 1), {"step": step}, **options)


def caught(comm, call) -> str:
    error = raises(serialization.CheckpointError, "", call)
    comm.barrier()  # the communicator is as good as before
    return str(error).partition("\n")[0]


TORN = {
    "missing": (lambda new, old: new.unlink(), "the file is missing"),
    "of another step": (lambda new, old: shutil.copy(old, new), "its sha256 is not the manifest's"),
    "damaged": (lambda new, old: new.write_bytes(new.read_bytes()[:-1] + b"?"), "its sha256 is not the manifest's"),
}


@pytest.mark.parametrize("how", TORN)
def test_a_torn_set_is_one_error_of_all_ranks_and_the_older_checkpoint_stays(tmp_path, how):
    act, words = TORN[how]
    dist.run_threads(2, lambda comm: save(comm, tmp_path, 1), timeout=30)
    dist.run_threads(2, lambda comm: dist.save_sharded_checkpoint(tmp_path, *trained(comm, "stage 2"), {"step": 2}))
    share = "trainer-rank-1-of-2.safetensors"
    act(tmp_path / "step-00000002" / share, tmp_path / "step-00000001" / share)
    told = dist.run_threads(3, lambda comm: caught(comm, lambda: dist.load_distributed_checkpoint(comm, tmp_path)))
    for text in told:
        assert f"step-00000002/{share}: {words}" in text and "last intact one before it is" in text, text
    raises(CheckpointError, words, serialization.export_safetensors, tmp_path, tmp_path / "x", "trainer")
    assert dist.run_threads(3, lambda comm: dist.load_distributed_checkpoint(comm, tmp_path, 1).step) == [1] * 3


def test_other_trainers_are_refused_with_what_saves_them(tmp_path):
    trainer = dist.SimpleTrainer(dist.TrainingConfig())
    for save in (dist.save_sharded_checkpoint, dist.AsyncCheckpointer().save_sharded):
        raises(TypeError, "of a SimpleTrainer; save .* save_checkpoint", save, tmp_path, Parts(), trainer, {"step": 1})


def test_what_manifests_and_shares_may_not_say(tmp_path):
    for last, *names in ((1, "m-rank-1-of-2"), (2, "m-rank-0-of-2", "m-rank-1-of-3"), (0, "m", "m-rank-0-of-1")):
        files = [f"{n}.safetensors" for n in names]
        raises(ValueError, f"the shares of 'm' are not those of ranks 0 to {last}:", shares.by_stem, files)
    shapes = {"[3]": "do not make", "[-2]": "is not the shape", "x": "not JSON", '["2"]': "not the shape"}
    for shape, words in shapes.items():
        path = tmp_path / shares.name_of("m", 0, 1)
        path.unlink(missing_ok=True)
        views = shares.safetensors_format.encode({"w": np.ones(2)}, {"w": shape})
        records = {path.name: durable.write_new_file(path, views)}
        for read in (shares.read, lambda *given: list(shares.merged(*given))):
            raises(CheckpointError, words, read, tmp_path, [path.name], records)
    save = partial(serialization.save_checkpoint, tmp_path, {"m-rank-0-of-1": {}}, {"step": 1})
    raises(CheckpointError, "cannot name a file", save)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_share_that_cannot_be_written_is_an_error_of_all_ranks(tmp_path, monkeypatch, rank):
    write, broken = durable.write_new_file, threading.Event()
    broken.set()

    def write_new_file(path, chunks):
        if f"model-rank-{rank}" in path.name and broken.is_set():
            raise OSError(28, "No space left on device", str(path))
        return write(path, chunks)

    monkeypatch.setattr(durable, "write_new_file", write_new_file)

    def body(comm):
        text = caught(comm, lambda: save(comm, tmp_path, 1))
        broken.clear()
        comm.barrier()
        save(comm, tmp_path, 2)
        return text

    told = dist.run_threads(3, body, timeout=60)
    assert len(set(told)) == 1 and f"rank {rank}: " in told[0] and "No space left on device" in told[0], told
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    bad = dist.run_threads(2, lambda comm: caught(comm, lambda: save(comm, tmp_path, -1)), timeout=30)
    assert all('state["step"] must be' in text for text in bad)


def test_it_is_written_beside_the_training_one_at_a_time(tmp_path, monkeypatch):
    """With the values of when it was begun, whatever the training does meanwhile."""
    may_write = threading.Event()
    write = RankShare.write

    def slow(share):
        assert may_write.wait(30)
        return write(share)

    monkeypatch.setattr(RankShare, "write", slow)

    def body(comm):
        net, trainer = trained(comm, "stage 3")
        with dist.AsyncCheckpointer() as checkpoints:
            state = {"step": 2, "notes": ["first"]}
            checkpoints.save_sharded(tmp_path, net, trainer, state)
            state["notes"].append("later")
            want = contents(net, trainer)
            trainer.backward_and_step(net.loss(minigrad.ones(2, 5)), net.named_parameters())
            assert not list(tmp_path.glob("step-*"))
            comm.barrier()
            may_write.set()
            checkpoints.save_sharded(tmp_path, net, trainer, {"step": 3})
            first = serialization.load_checkpoint(tmp_path, 2)
            assert (bits(first.tensors), first.state["trainer"]) == want and first.state["notes"] == ["first"]
        assert bits(serialization.load_checkpoint(tmp_path, 3).tensors) == contents(net, trainer)[0] != want[0]
        assert checkpoints.wait() is None

    dist.run_threads(2, body, timeout=30)


def test_what_a_device_has_copied_to_the_host_is_not_copied_again(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(minigrad.device.CPU.kernels, "to_host", lambda x: made.append(np.array(x)) or made[-1])
    with dist.AsyncCheckpointer() as checkpoints:
        checkpoints.save_sharded(tmp_path, *trained(dist.NoOpCommunicator(), "stage 2"), {"step": 2})
        arrays = [x for mine, _ in checkpoints._share.files.values() for x in mine.values()]
        assert {id(x) for x in arrays if x.ndim == 1} <= {id(x) for x in made} and len(arrays) > 9


@pytest.mark.long
def test_a_rank_that_dies_in_a_save_leaves_the_older_checkpoint_and_nobody_waits_for_it(tmp_path, monkeypatch):
    dist.run_threads(2, lambda comm: save(comm, tmp_path, 1), timeout=30)
    write = RankShare.write
    monkeypatch.setattr(RankShare, "write", lambda share: share.communicator.rank or write(share))

    def body(comm):
        net, trainer = trained(comm, "stage 2")
        with dist.AsyncCheckpointer() as checkpoints:
            checkpoints.save_sharded(tmp_path, net, trainer, {"step": 2})
            if comm.rank:
                raise KeyError("the rank is lost")
            comm.barrier()

    began = time.monotonic()
    raises((KeyError, dist.PeerLostError), "", lambda: dist.run_threads(2, body, timeout=60))
    assert time.monotonic() - began < 20
    assert [entry.step for entry in serialization.list_checkpoints(tmp_path)] == [1]
    assert serialization.load_checkpoint(tmp_path).step == 1


@pytest.mark.long
@pytest.mark.parametrize("kind", ["error", "kill"])
def test_any_call_of_a_save_of_shares_may_fail(tmp_path, kind):
    comm = dist.NoOpCommunicator()
    outcomes = []
    for faults in each_call(kind):
        folder = tmp_path / str(faults.at)
        net, trainer = trained(comm, "stage 2")
        for step in (1, 2):
            dist.save_sharded_checkpoint(folder, net, trainer, {"step": step})
        returned = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # an old checkpoint that could not be deleted
            with contextlib.suppress(serialization.CheckpointError, Killed), faults.installed():
                dist.save_sharded_checkpoint(folder, net, trainer, {"step": 3})
                returned = True
        newest = serialization.load_checkpoint(folder)
        assert newest.step in ((3,) if returned else (2, 3)) and bits(newest.tensors) == contents(net, trainer)[0]
        outcomes.append(returned)
    assert True in outcomes and False in outcomes and len(outcomes) > 20


@pytest.mark.long
def test_weights_are_exported_without_being_held(tmp_path):
    """From shares and from whole files, to what load_safetensors reads."""
    net = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(8)])  # 32 MB

    def body(comm):
        trainer = dist.ShardedTrainer(None, comm, stage=2)
        dist.save_sharded_checkpoint(tmp_path, net, trainer, {"step": 1})

    dist.run_threads(3, body, timeout=60)
    sizes = [file.stat().st_size for file in tmp_path.glob("step-*/model-rank-*")]
    assert len(sizes) == 3 and max(sizes) < 1.01 * min(sizes)
    serialization.save_checkpoint(tmp_path / "whole", {"model": net.state_dict()}, {"step": 1})
    for source in (tmp_path, tmp_path / "step-00000001", tmp_path / "whole"):
        tracemalloc.start()
        path = serialization.export_safetensors(source, tmp_path / "model.safetensors", checksums=True)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16e6  # a layer has 4 MB
        found = serialization.load_safetensors(path)
        assert bits({"": found}) == bits({"": {name: x.numpy() for name, x in net.state_dict().items()}})
    export = serialization.export_safetensors
    raises(CheckpointError, "no tensors called 'optimizer'; it has model", export, tmp_path, "x", "optimizer")
    raises(serialization.CheckpointError, "could not be written", export, tmp_path, tmp_path / "no" / "x")
    raises(serialization.CheckpointError, "file is missing", export, tmp_path / "no", tmp_path / "x")
