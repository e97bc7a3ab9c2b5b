# %% [markdown]
# # Two ranks
#
# Data-parallel training gives each rank a part of the batch and averages the gradients. Ranks may be processes or, as
# here, threads: the calls are the same.

# %%
import minigrad
from minigrad.distributed import Communicator, DistributedTrainer, NoOpCommunicator, TrainingConfig, run_threads
from minigrad.nn import functional as F

minigrad.manual_seed(0)
x = minigrad.randn(24, 8)
y = (x.sum(1) > 0).long()


def train(comm: Communicator):
    minigrad.manual_seed(1)
    model = minigrad.nn.Sequential(minigrad.nn.Linear(8, 16), minigrad.nn.Tanh(), minigrad.nn.Linear(16, 2))
    trainer = DistributedTrainer(TrainingConfig(learning_rate=0.05), comm)
    mine = slice(comm.rank, None, comm.world_size)  # this rank's samples
    losses = []
    for _ in range(20):
        loss = F.cross_entropy(model(x[mine]), y[mine])
        metrics = trainer.step(model.named_parameters(), loss.backward(), loss.item())
        losses.append(metrics.loss)
    return losses, [p.detach().numpy().copy() for p in model.parameters()]


alone, weights = train(NoOpCommunicator())
print(f"one process: {alone[0]:.4f} -> {alone[-1]:.4f}")

# %% [markdown]
# Two ranks with half of the batch each: the ranks agree to the bit, and with one process up to rounding.

# %%
import numpy as np

(first, weights_0), (second, weights_1) = run_threads(2, train)
assert all(np.array_equal(a, b) for a, b in zip(weights_0, weights_1, strict=True))
assert np.allclose(first, alone, atol=1e-5)
print(f"two ranks:   {first[0]:.4f} -> {first[-1]:.4f}")

# %% [markdown]
# As processes: `python -m minigrad.distributed.launch -n 2 program.py`, with `init_process_group()` in place of
# `run_threads`. [Training on several processes](../distributed.md) goes on from here.
