"""The block trainer with a process for each rank: equal weights, means, checkpoints, and a process that is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import requires_mpi, run_ranks

TESTS = Path(__file__).parents[1]

PROCESSES = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import pytest
from block_trainer_nets import CONFIG, Net, Spoil, alone, assert_like_one_process, batch, parts, train
from minigrad.distributed import BlockDistributedTrainer, MpiCommunicator, NonFiniteBlockGradientError

comm = MpiCommunicator(timeout=20)
assert comm.world_size == 2
for tied in (False, True):
    assert_like_one_process(train(comm, Net(comm.rank, tied=tied), (9, 3)), alone(Net(tied=tied)))
net = Net()
trainer = BlockDistributedTrainer(net, comm, CONFIG)
trainer.train_batch(*batch(0, parts((9, 3), comm.rank)))
before = net.norm.weight.data.copy()
if comm.rank == 1:
    trainer._loss_fn = lambda x, y: net.loss(x, y) + Spoil.apply(net.blocks[1].weight, value=np.inf)
with pytest.raises(NonFiniteBlockGradientError, match="step 2: .* rank 1, block 1 .blocks.1.weight."):
    trainer.train_batch(*batch(1, parts((9, 3), comm.rank)))
assert np.array_equal(net.norm.weight.data, before)
trainer._loss_fn = net.loss
trainer.train_batch(*batch(1, parts((9, 3), comm.rank)))
trainer.verify_replicas()
path = trainer.save_checkpoint(sys.argv[2])
again = Net(5)
other = BlockDistributedTrainer(again, comm, CONFIG)
other.load_checkpoint(sys.argv[2])
for one in (trainer, other):
    one.train_batch(*batch(2, parts((9, 3), comm.rank)))
for a, b in zip(net.parameters(), again.parameters()):
    assert np.array_equal(a.data, b.data)
comm.close()
print("passed")
"""

LOST = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from block_trainer_nets import CONFIG, Net, batch
from minigrad.distributed import BlockDistributedTrainer, CommError, MpiCommunicator

comm = MpiCommunicator(timeout=2)
trainer = BlockDistributedTrainer(Net(), comm, CONFIG)
try:
    for step in range(4):
        if step == 2 and comm.rank == 1:
            if sys.argv[2] == "killed":
                os.kill(os.getpid(), 9)
            time.sleep(600)
        trainer.train_batch(*batch(step))
except CommError as error:
    print(type(error).__name__, "in step", error.step, flush=True)
    raise
"""


@requires_mpi
def test_must_weight_identity_mean_semantics_and_checkpoint_with_processes(tmp_path):
    result = run_ranks(2, PROCESSES, TESTS, tmp_path / "run", timeout=300)
    assert result.returncode == 0, result.text
    assert [result.lines(rank) for rank in range(2)] == [["passed"]] * 2


@requires_mpi
@pytest.mark.parametrize("how", ["killed", "stalled"])
def test_must_peer_loss_of_a_process(how):
    grace = "60" if how == "killed" else "1"  # rank 0 has a minute to notice; one that sleeps needs no longer
    result = run_ranks(2, LOST, TESTS, how, timeout=300, options=("--grace", grace))  # before the sleeper wakes
    assert result.returncode != 0
    assert result.lines(0) in (["PeerLostError in step 3"], ["CommTimeoutError in step 3"]), result.text
