"""The decisive properties of the trainers once more, with ranks that are processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import requires_mpi, run_ranks

pytestmark = requires_mpi

TRAINING = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/distributed"]
import pytest
from data_parallel import (
    KINDS, Scenario, Share, alone, assert_same_run, feed, make_trainer, shares, state_bits, train
)
from test_amp_trainer import HUGE, SMALL, line
from test_amp_trainer import feed as feed_amp
from minigrad.distributed import MpiCommunicator, NonFiniteLossError, all_gather_bytes
from minigrad.optim import LossScaleStrategy

comm = MpiCommunicator(timeout=30)
W = comm.world_size
sizes = {2: (5, 7), 3: (3, 0, 9), 4: (1, 6, 0, 5)}[W]
unused = tuple(  # rank 0 never uses one part, the others another
    tuple(tuple(Share(s.rows, frozenset({"gain"} if rank else {"side"})) for s in part) for rank, part in enumerate(w))
    for w in shares(W, steps=2, accum=4)
)
scenarios = [
    Scenario(shares(W, steps=2, sizes=sizes)),
    Scenario(shares(W, steps=2, accum=3, sizes=sizes), accum=3, clip=0.3, tied=True),
    Scenario(shares(W, steps=2, accum=2), accum=2, ends="no_sync", frozen=("bias",)),
    Scenario(unused, accum=4, clip=0.3),
]
exact = [alone(scenario) for scenario in scenarios]
for kind in KINDS:
    for scenario, want in zip(scenarios, exact):
        for bucket in (16, 25 * 2**20):
            records = train(comm, kind, scenario, bucket)
            assert_same_run(records, want)
            bits = all_gather_bytes(comm, repr([r.bits() for r in records]).encode())
            assert bits == [bits[0]] * W, f"{kind}: the ranks differ"

    # A loss that is not finite on the last rank stops all of them, and they go on.
    net, scenario = scenarios[0].net(), Scenario(shares(W, steps=3))
    trainer = make_trainer(kind, comm)
    for step in range(3):
        before = state_bits(trainer, net)
        batch = scenario.batch(step, scenario.steps[step][comm.rank][0].rows)
        if step == 1:
            with pytest.raises(NonFiniteLossError, match=f"the loss of step 2 is nan on rank {W - 1}"):
                feed(trainer, net, net.loss(*batch) * (float("nan") if comm.rank == W - 1 else 1.0))
            assert state_bits(trainer, net) == before
        assert feed(trainer, net, net.loss(*batch)).step == step + 1
        trainer.assert_replicas_identical(net.named_parameters())

# Scaled gradients that overflow on the last rank leave the step out on all of them.
net, trainer = line(LossScaleStrategy.dynamic(growth_interval=2), comm)
made = [feed_amp(trainer, net, HUGE if comm.rank == W - 1 and step == 1 else SMALL) is not None for step in range(4)]
assert made == [True, False, True, True], made
trainer.assert_replicas_identical(net.named_parameters())
assert all_gather_bytes(comm, repr((trainer.loss_scale, trainer.skipped_steps)).encode()) == [b"(65536.0, 1)"] * W
comm.close()
print("passed")
"""

TESTS = Path(__file__).parents[1]


@pytest.mark.long(but=1)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_processes_are_one_process(n):
    result = run_ranks(n, TRAINING, TESTS, timeout=100)
    assert result.returncode == 0, result.text
    assert [result.lines(rank) for rank in range(n)] == [["passed"]] * n
