"""What the trainer writes: checkpoints that resume bit for bit, and the log of rank 0."""

from functools import partial

import numpy as np
from block_trainer_nets import CONFIG, Net, One, batch, held, parts
from data_parallel import state_bits
from refusals import raises

import minigrad
from minigrad import distributed as dist
from minigrad.metrics_log import read_json_lines
from minigrad.optim import SGD
from minigrad.serialization import CheckpointError


def test_must_checkpoint_resumes_bit_for_bit_on_every_rank(tmp_path):
    def body(comm: dist.ThreadCommunicator, resumes: bool):
        net = Net(9 if resumes else 0, np.float32)
        trainer = dist.BlockDistributedTrainer(net, comm, CONFIG, log=tmp_path / f"log-{resumes}.jsonl")
        if resumes:
            assert trainer.load_checkpoint(tmp_path / "run") == {"note": "x"}
            assert trainer.global_step == 3
            trainer.verify_replicas()
        for step in range(trainer.global_step, 6):
            if step == 3 and not resumes:
                assert trainer.save_checkpoint(tmp_path / "run", {"note": "x"}) == tmp_path / "run/step-00000003"
            trainer.train_batch(*batch(step, parts((7, 5), comm.rank), np.float32))
        return state_bits(trainer, net), held(net)

    straight, resumed = (dist.run_threads(2, partial(body, resumes=resumes), timeout=20) for resumes in (False, True))
    assert straight == resumed
    assert [r["step"] for r in read_json_lines(tmp_path / "log-True.jsonl")] == [4, 5, 6]


def test_must_checkpoint_of_another_dtype_is_not_cast_in_silence(tmp_path):
    for dtype in (np.float64, np.float32):
        net = One(dtype)
        net.blocks[0].weight.data[...] = 1 / 3
        plain = SGD([net.blocks[0].weight], lr=0.1)
        trainer = dist.BlockDistributedTrainer(net, dist.NoOpCommunicator(), CONFIG, optimizer=plain)
        if dtype is np.float64:
            trainer.save_checkpoint(tmp_path)
        else:
            raises(CheckpointError, "does not fit rank 0: the weights' hash is", trainer.load_checkpoint, tmp_path)


def test_must_checkpoint_hashes_every_ranks_weights_and_writes_nothing_if_they_differ(tmp_path):
    def body(comm: dist.ThreadCommunicator) -> None:
        net = Net()
        trainer = dist.BlockDistributedTrainer(net, comm, CONFIG)
        trainer.train_batch(*batch(0))
        trainer.save_checkpoint(tmp_path / "run")
        net.norm.weight.data[0] += comm.rank
        raises(dist.ReplicaMismatchError, "norm.weight", lambda: trainer.save_checkpoint(tmp_path / "broken"))

    dist.run_threads(2, body, timeout=20)
    assert not (tmp_path / "broken").exists()
    state = minigrad.serialization.load_checkpoint(tmp_path / "run").state
    assert len(state["weight_hashes"]) == 2 and len(set(state["weight_hashes"])) == 1 and state["world_size"] == 2

    def other(comm: dist.ThreadCommunicator) -> None:
        trainer = dist.BlockDistributedTrainer(Net(dtype=np.float32), comm, CONFIG)
        raises(CheckpointError, "does not fit rank 0", lambda: trainer.load_checkpoint(tmp_path / "run"))
        raises(CheckpointError, "", lambda: trainer.load_checkpoint(tmp_path / "nowhere"))

    dist.run_threads(2, other, timeout=20)


def test_should_launcher_rank_0_writes_loss_norm_tokens_and_communication(tmp_path):
    def body(comm: dist.ThreadCommunicator):
        net = Net(comm.rank)
        trainer = dist.BlockDistributedTrainer(net, comm, CONFIG, log=tmp_path / "log.jsonl", log_every=2)
        made = [trainer.train_batch(*batch(step, parts((7, 5), comm.rank))) for step in range(4)]
        trainer.close()
        return made

    made, _ = dist.run_threads(2, body, timeout=20)
    lines = read_json_lines(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines] == [2, 4]
    for line in lines:
        metrics = made[line["step"] - 1]
        assert (line["loss"], line["grad_norm"], line["lr"]) == (metrics.loss, metrics.grad_norm, metrics.lr)
        assert line["tokens_per_second"] > 0 and line["world_size"] == 2 and line["skipped_steps"] == 0
        assert line["communication_seconds"] > 0 and line["waited_seconds"] == max(line["waited_by_rank"]) >= 0
