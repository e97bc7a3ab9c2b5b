# %% [markdown]
# # Where time and memory go
#
# A model to look at, and one step of its training:

# %%
import minigrad
from minigrad.models import GPT2, GPT2Config
from minigrad.optim import AdamW

minigrad.manual_seed(0)
model = GPT2(GPT2Config(vocab_size=65, block_size=32, n_layer=6, n_head=2, n_embd=64))
optimizer = AdamW(model.parameters(), lr=1e-3)
x, y = minigrad.randint(0, 65, (8, 32)), minigrad.randint(0, 65, (8, 32))


def step():
    optimizer.step(model.loss(x, y).backward())


step()  # compiles the kernels, or loads them

# %% [markdown]
# The profiler tells kernels and modules apart, forward and backward:

# %%
with minigrad.profiler.profile(model) as seen:
    for _ in range(10):
        step()
print(seen)

# %% [markdown]
# What a step holds in memory, and who made it:

# %%
print(minigrad.memory_report(model, lambda: model.loss(x, y)))

# %% [markdown]
# Less of it, for more time: the blocks keep their inputs only, and `backward` computes them again.

# %%
frugal = GPT2(GPT2Config(vocab_size=65, block_size=32, n_layer=6, n_head=2, n_embd=64, checkpoint_blocks=True))
frugal.loss(x, y).backward().values()  # compiles what is new: that would count as memory
kept = minigrad.memory_report(model, lambda: model.loss(x, y)).peak
computed_again = minigrad.memory_report(frugal, lambda: frugal.loss(x, y)).peak
assert computed_again < kept
print(f"all kept {kept / 2**20:.2f} MiB, computed again {computed_again / 2**20:.2f} MiB")
