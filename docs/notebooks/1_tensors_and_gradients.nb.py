# %% [markdown]
# # Tensors and gradients
#
# A tensor is an array that can remember how it came about. It behaves as PyTorch's does; a view shares its memory.

# %%
import minigrad

x = minigrad.arange(12, dtype=minigrad.float32).reshape(3, 4)
column = x[:, 1]
column += 100
x

# %% [markdown]
# `backward` walks the graph from the loss to the leaves and *returns* the gradients. Nothing is stored on tensors, so
# nothing needs to be zeroed.

# %%
minigrad.manual_seed(0)
weight = minigrad.randn(4, 2, requires_grad=True)
bias = minigrad.zeros(2, requires_grad=True)
target = minigrad.tensor([[0.5, -0.5], [0.0, 0.5], [-0.5, 0.0]])
inputs = x / 100

loss = ((inputs @ weight + bias).tanh() - target).square().mean()
grads = loss.backward()
grads[bias]

# %% [markdown]
# The graph that it walked:

# %%
loss = ((inputs @ weight + bias).tanh() - target).square().mean()
minigrad.draw(loss, {"weight": weight, "bias": bias})

# %% [markdown]
# Is the gradient right? Compare with the difference quotient, in float64:

# %%
minigrad.gradcheck(lambda a, b: (a @ b).tanh(), (inputs.double(), weight.detach().double().requires_grad_()))

# %% [markdown]
# Downhill, by hand:

# %%
losses = []
for _ in range(50):
    loss = ((inputs @ weight + bias).tanh() - target).square().mean()
    grads = loss.backward()
    with minigrad.no_grad():
        weight -= 0.5 * grads[weight]
        bias -= 0.5 * grads[bias]
    losses.append(loss.item())

assert losses[-1] < losses[0]
print(f"{losses[0]:.3f} -> {losses[-1]:.3f}")
