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
    table, places = numbers(4, 2), np.array([[1, 3, 1]])
    what = "table of 4 rows, places [[1, 3, 1]]"
    same(f"{what}: the rows", my.Embedding(places).forward(table), table[places])
    op = my.Embedding(places)
    op.forward(table)
    got = op.backward(np.array([[[1.0, 1.0], [2.0, 2.0], [10.0, 10.0]]]))
    want, last = (np.outer([0.0, x, 0.0, 2.0], [1.0, 1.0]) for x in (11, 10))
    wrong = {"the last use only: grad[places] += dz adds once for a repeated row": last}
    wrong["the number of uses, without dz"] = np.outer([0.0, 2.0, 0.0, 1.0], [1.0, 1.0])
    same(f"{what}, dz = 1, 2 and 10: the gradient of the table", got, want, wrong)
    same("dz = 0 afterwards: 0 again", op.backward(np.zeros((1, 3, 2))), np.zeros((4, 2)))


def exercise_2(my: Any) -> None:
    centred = ROWS - ROWS.mean(-1, keepdims=True)
    s = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    with np.errstate(all="ignore"):
        same("LayerNorm of [[1, 1]]: 1e-5 keeps it finite", my.LayerNorm().forward(np.ones((1, 2))), np.zeros((1, 2)))
    columns = ROWS - ROWS.mean(0)
    spread = (columns**2).mean(-1, keepdims=True)
    mistakes = {
        "what means over the first axis give: each row has a mean of its own": columns / np.sqrt(spread + 1e-5),
        "the deviation from the mean, divided by the variance and not by its root": centred / s**2,
        "without subtracting the mean": ROWS / s,
    }
    same(f"LayerNorm of {ROWS.tolist()}", my.LayerNorm().forward(ROWS), centred / s, mistakes)
    ends = "without the term of the mean", "without the term of s", "dz / s: mean and s depend on x, too"

    def without(dz: Array) -> dict[str, Array]:
        along, mean = centred / s * (dz * centred / s).mean(-1, keepdims=True), dz.mean(-1, keepdims=True)
        return dict(zip(ends, ((dz - along) / s, (dz - mean) / s, dz / s)))

    check_backward(f"LayerNorm of {ROWS.tolist()}", my.LayerNorm, [ROWS], without)
    check_backward("LayerNorm of shape (2, 1, 3)", my.LayerNorm, [numbers(2, 1, 3)])


def exercise_3(my: Any) -> None:
    powers = np.exp(ROWS - ROWS.max(-1, keepdims=True))
    p = powers / powers.sum(-1, keepdims=True)
    mistakes = {"over the first axis": powers / powers.sum(0), "over all elements": powers / powers.sum()}
    same(f"Softmax of {ROWS.tolist()}", my.Softmax().forward(ROWS), p, mistakes)
    with np.errstate(all="ignore"):
        got = my.Softmax().forward(np.array([[1000.0, 0.0]]))
    same("Softmax of [[1000, 0]]: exp(1000) overflows; subtract the largest", got, np.array([[1.0, 0.0]]))
    own = "each element by itself: one that grows also takes from the others"
    check_backward(f"Softmax of {ROWS.tolist()}", my.Softmax, [ROWS], lambda dz: {own: dz * p * (1 - p)})


def exercise_4(my: Any) -> None:
    for T, S in ((3, 3), (1, 3), (2, 3)):
        q, k, v = 2 * numbers(1, 1, T, 4), 3 * numbers(1, 1, S, 4), numbers(1, 1, S, 4)[..., ::-1].copy()

        def mixed(scale: float, first: int, q: Array = q, k: Array = k, v: Array = v) -> Array:
            scores = q @ k.swapaxes(-1, -2) * scale - 1e9 * np.triu(np.ones((q.shape[2], k.shape[2])), first)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            return p / p.sum(-1, keepdims=True) @ v

        mistakes = {
            "without the division by √D": mixed(1.0, S - T + 1),
            "divided by D and not by its root": mixed(0.25, S - T + 1),
            "without a mask: queries see later keys": mixed(0.5, S + 1),
            "one place off: a query sees its own key, too": mixed(0.5, S - T),
            "one place off: a query sees the key after it": mixed(0.5, S - T + 2),
            "masked as if the queries stood at the first places, not the last": mixed(0.5, 1),
        }
        got = my.attention(my.Tensor(q), my.Tensor(k), my.Tensor(v))
        same(f"attention of {T} queries and {S} keys, D = 4", got.data, mixed(0.5, S - T + 1), mistakes)
    one = my.Tensor(numbers(1, 1, 2, 4), True)
    require(my.attention(one, one, one).requires_grad, "the result needs no gradient: compute with tensors, not .data")


def exercise_5(my: Any) -> None:
    x = np.arange(8.0).reshape(1, 2, 4)
    want = np.array([[[[0.0, 1], [4, 5]], [[2, 3], [6, 7]]]])
    wrong: dict[str, Any] = {
        "cut in the wrong places: reshape to (B, T, heads, D) first, then move the axis": x.reshape(1, 2, 2, 2)
    }
    wrong["every second number of a row: a head has one piece"] = x.reshape(1, 2, 2, 2).transpose(0, 3, 1, 2)
    got = my.split(my.Tensor(x), 2)
    same("split of [[[0, 1, 2, 3], [4, 5, 6, 7]]] into 2 heads", got.data, want, wrong)
    wrong = {"joined without moving the axis back": want.reshape(1, 2, 4)}
    same("join of that", my.join(my.Tensor(want)).data, x, wrong)
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
    mistakes = {
        "without the places: the order of the tokens is lost": (2 * table[tokens] + 1) @ table.T,
        "without the second block": 2 * (table[tokens] + places[:3]) @ table.T,
        "with the blocks in the wrong order": 2 * (table[tokens] + places[:3] + 1) @ table.T,
    }
    what = "tokens [[3, 1, 3]], with a block that doubles, a block that adds 1, and no norm: the logits"
    same(what, model(tokens).data, x @ table.T, mistakes)
    model.norm = lambda x: x * 3.0
    plain = {"without norm": x @ table.T}
    same("the same with a norm that multiplies by 3", model(tokens).data, 3 * x @ table.T, plain)
    caches = [SimpleNamespace(length=lambda: 2) for _ in range(2)]
    want = 3 * (2 * (table[tokens] + places[2:5]) + 1) @ table.T
    early = {"at places 0, 1, 2: the caches hold 2 tokens": 3 * x @ table.T}
    same("the same after 2 tokens in the caches", model(tokens, caches).data, want, early)
    require(asked[-1] is caches[1], "block k gets caches[k]")


def exercise_7(my: Any) -> None:
    cache, k, v = my.Cache(), numbers(1, 2, 3, 2), numbers(1, 2, 3, 2) + 5
    parts = [cache.extend(my.Tensor(k[:, :, a:b]), my.Tensor(v[:, :, a:b])) for a, b in ((0, 1), (1, 2), (2, 3))]
    same("extend with one token: the keys", parts[0][0].data, k[:, :, :1])
    new = {"the new ones only: all are needed": k[:, :, 1:2], "in the wrong order": k[:, :, 1::-1]}
    same("extend with a second token: the keys", parts[1][0].data, k[:, :, :2], new)
    last = {"the keys": k, "without those of the first extend": v[:, :, 1:], "in the wrong order": v[:, :, ::-1]}
    last["without those of the second extend: keep the result in self"] = v[:, :, [0, 2]]
    last["keys where the values belong"] = np.concatenate([k[:, :, :2], v[:, :, 2:]], axis=2)
    same("extend with a third token: the values", parts[2][1].data, v, last)
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
    mistakes: Any = {"the new ones only": [1] * 3, "drawn by a place before the last": [2, 0, 2, 1, 1]}
    same(what, my.sample(model, [2, 0], 3, 0.0, rng), [2, 0, 1, 1, 1], mistakes)
    repeated = {"all tokens again: the caches hold the earlier ones": [[2, 0], [2, 0, 1], [2, 0, 1, 1]]}
    same("the tokens that the model was given, call by call", model.given, [[2, 0], [1], [1]], repeated)
    good = all(len(c or ()) == 2 and all(isinstance(x, my.Cache) for x in c) for c in model.caches)
    good = good and len({id(c[0]) for c in model.caches}) == 1
    require(good, "each call of the model gets the same list, with one Cache for each block")
    require(model.caches[0][0] is not model.caches[0][1], "each block needs a Cache of its own")
    for temperature, share, other in ((1.0, 0.75, 0.75), (0.5, 0.9, 3**0.5 / (1 + 3**0.5))):
        drawn = my.sample(Model(), [0], 4000, temperature, rng)[1:]
        what = f"logits [0, log 3, -20], temperature {temperature}: the share of token 1 in 4,000 draws"
        mistakes = {"what logits * temperature gives; divide": other, "always the largest": 1.0, "without softmax": 0.5}
        same(what, round(float(np.mean(np.array(drawn) == 1)), 2), share, mistakes, tolerance=0.03)
