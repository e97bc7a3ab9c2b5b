"""The checks of chapter 4."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from ..exercise import Array, check_backward, require, same

ROWS = np.array([[1.0, 2.0, 6.0], [0.5, -1.0, 0.2]])


def numbers(*shape: int) -> Array:
    """Fixed numbers without a pattern."""
    return np.sin(np.arange(1.0, np.prod(shape) + 1) ** 2).reshape(shape)


def exercise_1(my: Any) -> None:
    table, places = numbers(5, 2), np.array([[1, 3, 1]])
    what = "table of 5 rows, places [[1, 3, 1]]"
    same(f"{what}: the rows", my.Embedding(places).forward(table), table[places])
    op = my.Embedding(places)
    op.forward(table)
    got = op.backward(np.array([[[1.0, 1.0], [2.0, 2.0], [10.0, 10.0]]]))
    want = np.outer([0.0, 11.0, 0.0, 2.0, 0.0], [1.0, 1.0])
    same(f"{what}, dz = 1, 2 and 10: the gradient of the table", got, want)
    same("dz = 0 afterwards: 0 again", op.backward(np.zeros((1, 3, 2))), np.zeros((5, 2)))
    check_backward("table of 5 rows, places [1, 3, 1], of one axis", lambda: my.Embedding(places[0]), [table])


def exercise_2(my: Any) -> None:
    centred = ROWS - ROWS.mean(-1, keepdims=True)
    s = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    with np.errstate(all="ignore"):
        same("LayerNorm of [[1, 1]]: 1e-5 keeps it finite", my.LayerNorm().forward(np.ones((1, 2))), np.zeros((1, 2)))
    same(f"LayerNorm of {ROWS.tolist()}", my.LayerNorm().forward(ROWS), centred / s)
    check_backward(f"LayerNorm of {ROWS.tolist()}", my.LayerNorm, [ROWS])
    check_backward("LayerNorm of shape (2, 1, 3)", my.LayerNorm, [numbers(2, 1, 3)])


def exercise_3(my: Any) -> None:
    for what, x in (f"{ROWS.tolist()}", ROWS), ("shape (2, 3, 2)", numbers(2, 3, 2)):
        powers = np.exp(x - x.max(-1, keepdims=True))
        same(f"Softmax of {what}", my.Softmax().forward(x), powers / powers.sum(-1, keepdims=True))
        check_backward(f"Softmax of {what}", my.Softmax, [x])
    x = np.array([[1000.0, 0.0], [0.0, 0.0]])
    with np.errstate(all="ignore"):
        got, both = my.Softmax().forward(x[:1]), my.Softmax().forward(x)
    same("Softmax of [[1000, 0]]: exp(1000) overflows; subtract the largest", got, np.array([[1.0, 0.0]]))
    same("Softmax of [[1000, 0], [0, 0]]: each row has its own largest", both, np.array([[1.0, 0.0], [0.5, 0.5]]))


def exercise_4(my: Any) -> None:
    for T, S, D in ((3, 3, 4), (1, 3, 4), (2, 3, 3)):
        q, k, v = 2 * numbers(1, 2, T, D), 3 * numbers(1, 2, S, D), numbers(1, 2, S, D)[..., ::-1].copy()
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(D) - 1e9 * np.triu(np.ones((T, S)), S - T + 1)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        got = my.attention(my.Tensor(q), my.Tensor(k), my.Tensor(v))
        what = f"attention of {T} queries and {S} keys in 2 heads, D = {D}"
        same(what, got.data, p / p.sum(-1, keepdims=True) @ v)
    for name in "qkv":
        given = [my.Tensor(numbers(1, 1, 2, 4), name == other) for other in "qkv"]
        says = f"the result gives {name} no gradient: compute with tensors, not with .data"
        require(my.attention(*given).requires_grad, says)


def exercise_5(my: Any) -> None:
    x = np.arange(8.0).reshape(1, 2, 4)
    want = np.array([[[[0.0, 1], [4, 5]], [[2, 3], [6, 7]]]])
    got = my.split(my.Tensor(x), 2)
    same("split of [[[0, 1, 2, 3], [4, 5, 6, 7]]] into 2 heads", got.data, want)
    same("join of that", my.join(my.Tensor(want)).data, x)
    y = numbers(2, 3, 12)
    same("shape (2, 3, 12), 4 heads: split, then join", my.join(my.split(my.Tensor(y), 4)).data, y)
    same("split of shape (2, 3, 12) into 4 heads: the shape", my.split(my.Tensor(y), 4).shape, (2, 4, 3, 3))


def exercise_6(my: Any) -> None:
    model = my.GPT(np.random.default_rng(0), vocabulary=5, places=6, C=4, heads=2, layers=2)
    tokens = np.array([[3, 1, 3]])
    asked: list[Any] = []
    table, places = model.tokens.data, model.places.data
    model.norm = lambda x: x

    def add_one(x: Any, cache: Any = None) -> Any:
        asked.append(cache)
        return x + 1.0

    model.blocks = [lambda x, cache=None: x * 2.0, add_one]
    x = 2 * (table[tokens] + places[:3]) + 1
    what = "tokens [[3, 1, 3]], with a block that doubles, a block that adds 1, and no norm: the logits"
    same(what, model(tokens).data, x @ table.T)
    model.norm = lambda x: x * 3.0
    same("the same with a norm that multiplies by 3", model(tokens).data, 3 * x @ table.T)
    caches = [SimpleNamespace(length=lambda: 2) for _ in range(2)]
    want = 3 * (2 * (table[tokens] + places[2:5]) + 1) @ table.T
    same("the same after 2 tokens in the caches", model(tokens, caches).data, want)
    require(asked[-1] is caches[1], "block k gets caches[k]")
    x, norm, part = numbers(1, 3, 4), my.Norm(4), my.Attention(np.random.default_rng(0), 4, 2)
    norm.weight.data, norm.bias.data = np.array([1.0, 2.0, 4.0, 8.0]), np.arange(4.0)
    want = my.LayerNorm().forward(x) * norm.weight.data + norm.bias.data
    same("Norm with weight [1, 2, 4, 8] and bias [0, 1, 2, 3]", norm(my.Tensor(x)).data, want)
    part.q, part.k, part.v, part.out = (lambda y: y), (lambda y: y + 1.0), (lambda y: y * 3.0), (lambda y: y * 10.0)
    q, k, v = (my.split(my.Tensor(x), 2) + add for add in (0.0, 1.0, 0.0))
    what = "Attention of 3 places, 2 heads; q gives back what it gets, k adds 1, v multiplies by 3, and out by 10"
    same(what, part(my.Tensor(x)).data, want := 10 * my.join(my.attention(q, k, v * 3.0)).data)
    cache = SimpleNamespace(extend=lambda *new: (k, v * 3.0))
    same("the same for the last place, with a cache", part(my.Tensor(x[:, 2:]), cache).data, want[:, 2:])
    block = my.Block(np.random.default_rng(0), 1, 1)
    block.norm1, block.norm2 = (lambda y: y * 3.0), (lambda y: y * 5.0)
    block.attention = lambda y, cache=0.0: y * 10.0 + (cache or 0.0)
    block.up, block.down, x = (lambda y: y - 50.0), (lambda y: y * 100.0), my.Tensor(np.array([[[-1.0], [2.0]]]))
    what = "Block of -1 and 2: norm1 multiplies by 3, norm2 by 5, attention by 10, down by 100; up subtracts 50"
    same(what, block(x).data, np.array([[[-31.0], [26062.0]]]))
    what = "the same with a cache, for which attention adds 9: x + attention(norm1(x), cache)"
    same(what, block(x, 9.0).data, np.array([[[-22.0], [30571.0]]]))


def exercise_7(my: Any) -> None:
    cache, k, v = my.Cache(), numbers(1, 2, 3, 2), numbers(1, 2, 3, 2) + 5
    parts = [cache.extend(my.Tensor(k[:, :, a:b]), my.Tensor(v[:, :, a:b])) for a, b in ((0, 1), (1, 2), (2, 3))]
    kinds = {type(made).__name__ for part in parts for made in part}
    same("extend with one token after the other: what it returns", kinds, {"Tensor"})
    same("extend with one token: the keys", parts[0][0].data, k[:, :, :1])
    same("extend with a second token: the keys", parts[1][0].data, k[:, :, :2])
    same("extend with a third token: the values", parts[2][1].data, v)
    same("three tokens: cache.length()", cache.length(), 3)


def exercise_8(my: Any) -> None:
    class Model:
        """Logits for three tokens: 0, log 3 and -20. It notes what it is given."""

        blocks = (None, None)

        def __init__(self) -> None:
            self.given: list[list[int]] = []
            self.caches: list[Any] = []

        def __call__(self, tokens: Array, caches: Any = None) -> Any:
            self.given.append(tokens[0].tolist())
            self.caches.append(caches)
            logits = np.tile([0.0, 0.0, 50.0], (1, tokens.shape[1], 1))
            logits[0, -1] = [0.0, np.log(3.0), -20.0]
            return my.Tensor(logits)

    model, rng = Model(), np.random.default_rng(0)
    what = "logits [0, log 3, -20], tokens [2, 0], 3 more, temperature 0"
    same(what, my.sample(model, given := [2, 0], 3, 0.0, rng), [2, 0, 1, 1, 1])
    same("the list of tokens that was given, afterwards", given, [2, 0])
    same("the tokens that the model was given, call by call", model.given, [[2, 0], [1], [1]])
    good = all(len(c or ()) == 2 and all(isinstance(x, my.Cache) for x in c) for c in model.caches)
    good = good and len({id(c[0]) for c in model.caches}) == 1
    require(good, "each call of the model gets the same list, with one Cache for each block")
    require(model.caches[0][0] is not model.caches[0][1], "each block needs a Cache of its own")
    twice = [my.sample(Model(), [0], 30, 1.0, np.random.default_rng(1)) for _ in range(2)]
    same("temperature 1, two generators with one seed: the second's tokens are the first's", twice[1], twice[0])
    for temperature, share in ((1.0, 0.75), (0.5, 0.9)):
        drawn = my.sample(Model(), [0], 4000, temperature, rng)[1:]
        what = f"logits [0, log 3, -20], temperature {temperature}: the share of token 1 in 4,000 draws"
        same(what, round(float(np.mean(np.array(drawn) == 1)), 2), share, tolerance=0.03)
