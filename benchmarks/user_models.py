"""A dozen models that nobody tuned for, each written once for torch and minigrad: ``MODELS`` (for user_models_cpu.py).

A model is made by ``make(library, nn, F)`` and gives the loss of its inputs, which ``inputs(random)`` draws as arrays.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np


class UserModel(NamedTuple):
    """How a model is made, and arrays for it."""

    make: Callable[[Any, Any, Any], Any]
    inputs: Callable[[np.random.Generator], tuple[np.ndarray, ...]]


def floats(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal numbers, float32."""
    return random.standard_normal(shape, np.float32)


def weights(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Initial weights of a model of either library by name: matrices at random, vectors named weight 1, others 0."""
    random = np.random.default_rng(1)
    for name, parameter in sorted(model.named_parameters()):
        shape = tuple(parameter.shape)
        if len(shape) > 1:
            yield name, floats(random, *shape) / np.float32(math.sqrt(shape[-1]))
        else:
            yield name, np.full(shape, name.endswith("weight"), np.float32)


def mlp(library: Any, nn: Any, F: Any) -> Any:
    """A classifier of pictures: ReLU between linear layers."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
            )

        def forward(self, x: Any, target: Any) -> Any:
            return F.cross_entropy(self.layers(x), target)

    return Model()


def residual(library: Any, nn: Any, F: Any) -> Any:
    """Residual blocks with SiLU, for regression."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(256), nn.Linear(256, 512), nn.Linear(512, 256)

        def forward(self, x: Any) -> Any:
            return x + self.down(F.silu(self.up(self.norm(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block() for _ in range(6)])
            self.head = nn.Linear(256, 1)

        def forward(self, x: Any, target: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return F.mse_loss(self.head(x), target)

    return Model()


def llama(library: Any, nn: Any, F: Any) -> Any:
    """A Llama whose norm, rotation and SwiGLU are written by hand."""
    C, heads, T = 128, 4, 64
    D = C // heads

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(library.ones(C))

        def forward(self, x: Any) -> Any:
            return x * library.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        a, b = x.chunk(2, dim=-1)
        return library.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = Norm(), Norm()
            self.q, self.k, self.v, self.o = (nn.Linear(C, C, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(C, 3 * C, bias=False) for _ in range(2))
            self.down = nn.Linear(3 * C, C, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            B = x.shape[0]
            h = self.norm_1(x)
            q, k, v = (p(h).view(B, T, heads, D).transpose(1, 2) for p in (self.q, self.k, self.v))
            y = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).reshape(B, T, C))
            h = self.norm_2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(65, C)
            self.blocks = nn.ModuleList([Block() for _ in range(3)])
            self.norm, self.head = Norm(), nn.Linear(C, 65, bias=False)
            angles = np.arange(T)[:, None] * 10000.0 ** (-np.arange(D // 2) / (D // 2))
            self.register_buffer("cos", library.tensor(np.cos(angles).astype(np.float32)))
            self.register_buffer("sin", library.tensor(np.sin(angles).astype(np.float32)))

        def forward(self, tokens: Any, target: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return F.cross_entropy(self.head(self.norm(x)).view(-1, 65), target.view(-1))

    return Model()


def vit(library: Any, nn: Any, F: Any) -> Any:
    """A vision transformer: patches, blocks that see all, the mean over patches."""
    C, heads = 96, 4

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(C), nn.LayerNorm(C)
            self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
            self.mlp = nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C))

        def forward(self, x: Any) -> Any:
            B, T, _ = x.shape
            q, k, v = self.qkv(self.norm_1(x)).view(B, T, 3, heads, C // heads).permute(2, 0, 3, 1, 4).unbind(0)
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
            return x + self.mlp(self.norm_2(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.places = nn.Linear(49, C), nn.Parameter(library.zeros(16, C))
            self.blocks = nn.ModuleList([Block() for _ in range(4)])
            self.norm, self.head = nn.LayerNorm(C), nn.Linear(C, 10)

        def forward(self, pictures: Any, target: Any) -> Any:
            patches = pictures.view(-1, 4, 7, 4, 7).permute(0, 1, 3, 2, 4).reshape(-1, 16, 49)
            x = self.patch(patches) + self.places
            for block in self.blocks:
                x = block(x)
            return F.cross_entropy(self.head(self.norm(x).mean(1)), target)

    return Model()


def vae(library: Any, nn: Any, F: Any) -> Any:
    """A variational autoencoder; the noise is an input, so that both libraries have the same."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.mean, self.log_variance = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
            self.decode = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))

        def forward(self, x: Any, noise: Any) -> Any:
            h = F.relu(self.encode(x))
            mean, log_variance = self.mean(h), self.log_variance(h)
            z = mean + noise * library.exp(0.5 * log_variance)
            error = F.binary_cross_entropy_with_logits(self.decode(z), x, reduction="sum")
            return error - 0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()

    return Model()


def gru(library: Any, nn: Any, F: Any) -> Any:
    """A recurrent network written by hand: 24 steps of a gated unit."""
    C = 128

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(65, C)
            self.of_input, self.of_state, self.head = nn.Linear(C, 3 * C), nn.Linear(C, 3 * C), nn.Linear(C, 65)

        def forward(self, tokens: Any, target: Any) -> Any:
            given = self.of_input(self.embed(tokens))
            h, states = library.zeros(tokens.shape[0], C), []
            for t in range(tokens.shape[1]):
                r, z, n = given[:, t].chunk(3, dim=-1)
                hr, hz, hn = self.of_state(h).chunk(3, dim=-1)
                z = library.sigmoid(z + hz)
                h = (1 - z) * library.tanh(n + library.sigmoid(r + hr) * hn) + z * h
                states.append(h)
            return F.cross_entropy(self.head(library.stack(states, dim=1)).view(-1, 65), target.view(-1))

    return Model()


def single_operations(library: Any, nn: Any, F: Any) -> Any:
    """A GPT whose attention and layer norm are single operations."""
    C, heads, T = 128, 4, 64

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(library.ones(C)), nn.Parameter(library.zeros(C))

        def forward(self, x: Any) -> Any:
            centred = x - x.mean(-1, keepdim=True)
            variance = centred.pow(2).mean(-1, keepdim=True)
            return centred / library.sqrt(variance + 1e-5) * self.weight + self.bias

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = Norm(), Norm()
            self.qkv, self.out, self.up, self.down = (
                nn.Linear(C, 3 * C), nn.Linear(C, C), nn.Linear(C, 4 * C), nn.Linear(4 * C, C),
            )  # fmt: skip
            self.register_buffer("later", library.triu(library.ones(T, T), diagonal=1) > 0)

        def forward(self, x: Any) -> Any:
            B = x.shape[0]
            q, k, v = (t.view(B, T, heads, C // heads).transpose(1, 2) for t in self.qkv(self.norm_1(x)).split(C, -1))
            scores = (q @ k.transpose(-2, -1)) * (C // heads) ** -0.5
            y = F.softmax(scores.masked_fill(self.later, -math.inf), dim=-1) @ v
            x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
            h = self.up(self.norm_2(x))
            return x + self.down(0.5 * h * (1 + library.tanh(0.7978845608 * (h + 0.044715 * h.pow(3)))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.places = nn.Embedding(65, C), nn.Embedding(T, C)
            self.blocks = nn.ModuleList([Block() for _ in range(3)])
            self.norm, self.head = Norm(), nn.Linear(C, 65)

        def forward(self, tokens: Any, target: Any) -> Any:
            x = self.embed(tokens) + self.places(library.arange(T))
            for block in self.blocks:
                x = block(x)
            return F.cross_entropy(self.head(self.norm(x)).view(-1, 65), target.view(-1))

    return Model()


def autoencoder(library: Any, nn: Any, F: Any) -> Any:
    """Tanh and the Huber loss."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = ((256, 128), (128, 16), (16, 128), (128, 256))
            self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in sizes])

        def forward(self, x: Any) -> Any:
            y = x
            for layer in self.layers:
                y = library.tanh(layer(y))
            return F.huber_loss(y, library.tanh(x))

    return Model()


def mixer(library: Any, nn: Any, F: Any) -> Any:
    """An MLP-Mixer: linear layers across patches and across channels (Tolstikhin et al. 2021)."""
    C, T = 128, 49

    def two_layers(size: int, hidden: int) -> Any:
        return nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.head = nn.Linear(16, C), nn.Linear(C, 10)
            self.norms = nn.ModuleList([nn.LayerNorm(C) for _ in range(9)])
            self.across = nn.ModuleList([two_layers(T, 64) for _ in range(4)])
            self.channels = nn.ModuleList([two_layers(C, 256) for _ in range(4)])

        def forward(self, patches: Any, target: Any) -> Any:
            x = self.patch(patches)
            for i in range(4):
                x = x + self.across[i](self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
                x = x + self.channels[i](self.norms[2 * i + 1](x))
            return F.cross_entropy(self.head(self.norms[8](x).mean(dim=1)), target)

    return Model()


def table(library: Any, nn: Any, F: Any) -> Any:
    """Categories and numbers of a table: embeddings side by side, then an MLP."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeds = nn.ModuleList([nn.Embedding(50, 16) for _ in range(8)])
            self.layers = nn.Sequential(
                nn.Linear(8 * 16 + 12, 256), nn.LeakyReLU(), nn.Linear(256, 128), nn.ELU(), nn.Linear(128, 1)
            )

        def forward(self, categories: Any, numbers: Any, target: Any) -> Any:
            parts = [embed(categories[:, i]) for i, embed in enumerate(self.embeds)]
            return F.binary_cross_entropy_with_logits(self.layers(library.cat([*parts, numbers], dim=1)), target)

    return Model()


def cross_attention(library: Any, nn: Any, F: Any) -> Any:
    """A decoder that attends to another sequence."""
    C, heads = 128, 4

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.kv, self.out = nn.Linear(C, C), nn.Linear(C, 2 * C), nn.Linear(C, C)

        def forward(self, x: Any, memory: Any, causal: bool) -> Any:
            B, T, _ = x.shape
            q = self.q(x).view(B, T, heads, C // heads).transpose(1, 2)
            k, v = (t.view(B, -1, heads, C // heads).transpose(1, 2) for t in self.kv(memory).chunk(2, dim=-1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return self.out(y.transpose(1, 2).reshape(B, T, C))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(65, C), nn.Linear(C, 65)
            self.itself, self.other = (nn.ModuleList([Attention() for _ in range(2)]) for _ in range(2))
            self.norms = nn.ModuleList([nn.LayerNorm(C) for _ in range(4)])

        def forward(self, tokens: Any, memory: Any, target: Any) -> Any:
            x = self.embed(tokens)
            for i in range(2):
                h = self.norms[2 * i](x)
                x = x + self.itself[i](h, h, True)
                x = x + self.other[i](self.norms[2 * i + 1](x), memory, False)
            return F.cross_entropy(self.head(x).view(-1, 65), target.view(-1))

    return Model()


def points(library: Any, nn: Any, F: Any) -> Any:
    """Sets of points: a network for each point, batch norm, and the largest of each feature (Qi et al. 2017)."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Linear(3, 64), nn.Linear(64, 128), nn.Linear(128, 256)
            self.norm, self.head = nn.BatchNorm1d(256), nn.Linear(256, 10)

        def forward(self, x: Any, target: Any) -> Any:
            h = self.third(F.relu(self.second(F.relu(self.first(x)))))
            return F.cross_entropy(self.head(F.relu(self.norm(h.amax(dim=1)))), target)

    return Model()


def texts(B: int, T: int) -> Callable[[np.random.Generator], tuple[np.ndarray, ...]]:
    """Tokens (B, T) and targets."""
    return lambda random: (random.integers(0, 65, (B, T)), random.integers(0, 65, (B, T)))


def with_classes(*shape: int) -> Callable[[np.random.Generator], tuple[np.ndarray, ...]]:
    """Numbers of a shape, and one of ten classes for each first index."""
    return lambda random: (floats(random, *shape), random.integers(0, 10, shape[0]))


MODELS = {
    "mlp": UserModel(mlp, with_classes(128, 784)),
    "residual": UserModel(residual, lambda random: (floats(random, 256, 256), floats(random, 256, 1))),
    "llama": UserModel(llama, texts(8, 64)),
    "vit": UserModel(vit, with_classes(32, 28, 28)),
    "vae": UserModel(vae, lambda random: (random.random((128, 784), np.float32), floats(random, 128, 20))),
    "gru": UserModel(gru, texts(32, 24)),
    "single operations": UserModel(single_operations, texts(8, 64)),
    "autoencoder": UserModel(autoencoder, lambda random: (floats(random, 256, 256),)),
    "mixer": UserModel(mixer, with_classes(16, 49, 16)),
    "table": UserModel(
        table,
        lambda random: (
            random.integers(0, 50, (256, 8)), floats(random, 256, 12), random.random((256, 1), np.float32).round(),
        ),
    ),
    "cross attention": UserModel(cross_attention, lambda random: (
        random.integers(0, 65, (8, 48)), floats(random, 8, 96, 128), random.integers(0, 65, (8, 48)),
    )),
    "points": UserModel(points, with_classes(32, 128, 3)),
}  # fmt: skip
