# %% [markdown]
# # A kernel for a GPU
#
# The simulator runs a CUDA kernel on the CPU and counts what its warps did. This one copies a matrix, by columns:

# %%
import numpy as np

from minigrad.cuda_kernels.simulator import cuda, simulate  # on a GPU: from numba import cuda


def by_columns(x, y):
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    y[j, i] = x[i, j]


x, y = np.random.default_rng(0).random((32, 32), np.float32), np.zeros((32, 32), np.float32)
slow = simulate(by_columns, 1, (32, 32), x, y)
assert np.array_equal(y, x.T)
slow.traffic("global load")

# %% [markdown]
# Neighbouring threads read addresses that lie 128 bytes apart, so a load costs eight times the sectors that it needs.
# Through shared memory both sides are by rows; the 33rd column keeps the threads of a warp in different banks:


# %%
def through_a_tile(x, y):
    tile = cuda.shared.array((32, 33), np.float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[j, i] = x[j, i]
    cuda.syncthreads()
    y[j, i] = tile[i, j]


y[:] = 0
fast = simulate(through_a_tile, 1, (32, 32), x, y)
assert np.array_equal(y, x.T) and fast.bank_conflicts == 0 and not fast.races
fast.traffic("global load")

# %% [markdown]
# Without the barrier the simulator names the lines that race:


# %%
def without_barrier(x, y):
    tile = cuda.shared.array((32, 33), np.float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[j, i] = x[j, i]
    y[j, i] = tile[i, j]


racing = simulate(without_barrier, 1, (32, 32), x, y)
assert racing.races
print(racing.races[0])

# %% [markdown]
# The whole report. In a notebook, `fast` alone in a cell draws the accesses of one warp, a step at a time.

# %%
print(fast)
