"""The checks of chapter 3."""

from typing import Any

import numpy as np

from ..exercise import check_backward, require, same


def exercise_1(my: Any) -> None:
    def module(**parts: Any) -> Any:
        made = my.Module()
        vars(made).update(parts)
        return made

    def names(made: Any) -> list[str]:
        return list(made.named_parameters())

    weight, bias, other = (my.Tensor(np.zeros(2), True) for _ in range(3))
    alone = module(weight=weight, size=2, table=my.Tensor(np.zeros(2)))
    same("a module with a parameter `weight`, a number and a tensor without gradients", names(alone), ["weight"])
    require(alone.named_parameters()["weight"] is weight, "the parameter itself, not a copy: AdamW will change it")
    inner = module(bias=bias)
    same("a module with the parameter `bias`, as attribute `inner`", names(module(inner=inner)), ["inner.bias"])
    row = module(layers=[inner, module(bias=other)])
    same("a list `layers` of two such modules", names(row), ["layers.0.bias", "layers.1.bias"])
    deep = module(net=row)
    same("that module as attribute `net` of another", names(deep), ["net.layers.0.bias", "net.layers.1.bias"])
    twice = names(module(a=inner, b=inner, c=module(tied=bias)))
    what = "one module under two names, and its bias in another module: a shared parameter is listed once"
    same(what, twice, ["a.bias"])


def exercise_2(my: Any) -> None:
    w = my.first_weights(rng := np.random.default_rng(0), 400, 100)
    same("first_weights(rng, 400, 100): its shape", np.shape(w), (400, 100))
    drawn = my.first_weights(np.random.default_rng(0), 400, 100)
    require(np.array_equal(w, drawn), "two generators with one seed gave different weights: draw from `rng` only")
    again = my.first_weights(rng, 400, 100)
    require(not np.array_equal(w, again), "two layers got the same weights: draw from `rng`, and not from a new one")
    spread = round(float(np.std(w)), 2)
    same("first_weights(rng, 400, 100): the spread (standard deviation)", spread, 0.1, tolerance=0.005)
    same("its mean", round(float(np.mean(w)), 2), 0.0, tolerance=0.01)
    require(np.abs(w).max() > 0.3, f"the largest is {np.abs(w).max():.2f}: of 40,000 normal numbers one is above 0.3")


def exercise_3(my: Any) -> None:
    layer = my.Linear(np.random.default_rng(5), 3, 2)
    same("Linear(rng, 3, 2): the shape of weight, (outputs, inputs)", layer.weight.shape, (2, 3))
    same("its bias", layer.bias.data, np.zeros(2))
    for name in ("weight", "bias"):
        require(getattr(layer, name).requires_grad, f"Linear(rng, 3, 2): {name} is a tensor without requires_grad=True")
    drawn = my.first_weights(np.random.default_rng(5), 2, 3)
    same("its weight, which first_weights(rng, outputs, inputs) gives", layer.weight.data, drawn)
    x = np.array([[1.0, 0.0, 2.0]])
    layer.bias.data = np.array([10.0, 20.0])
    want = x @ layer.weight.data.T + layer.bias.data
    same("x W^T + b for x = [[1, 0, 2]], b = [10, 20]", layer(my.Tensor(x)).data, want)
    same("x of shape (4, 5, 3): the shape of the result", layer(my.Tensor(np.zeros((4, 5, 3)))).shape, (4, 5, 2))
    reached = [layer(my.Tensor(x))]
    for tensor in reached:
        reached += tensor.parents()
    for name in ("weight", "bias"):
        there = any(getattr(layer, name) is tensor for tensor in reached)
        require(there, f"the result gives {name} no gradient: compute with tensors and operations, not with .data")
    signs = np.array([[1.0, -2.0], [-0.5, 3.0]])
    same("Relu of [[1, -2], [-0.5, 3]]", my.Relu().forward(signs), np.maximum(signs, 0.0))
    check_backward("Relu of [[1, -2], [-0.5, 3]]", my.Relu, [signs])
    zero = my.Relu()
    zero.forward(np.zeros(1))
    same("Relu of [0], dz = [1]: 0 is not positive, and passes nothing", zero.backward(np.ones(1)), np.zeros(1))


def exercise_4(my: Any) -> None:
    logits, targets = np.array([[2.0, 0.0, -1.0], [0.5, 1.0, 3.0]]), np.array([0, 1])
    what = "logits [[2, 0, -1], [0.5, 1, 3]], targets [0, 1]"
    hot, p = np.eye(3)[targets], np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = -np.log(p[hot > 0]).mean()
    got = my.CrossEntropy(np.array([0])).forward(np.zeros((1, 2)))
    same("logits [[0, 0]], target [0]: the loss is log 2", got, np.log(2))
    same(f"{what}: the loss", my.CrossEntropy(targets).forward(logits), loss)
    with np.errstate(all="ignore"):
        got = my.CrossEntropy(np.array([0])).forward(np.array([[1000.0, 0.0]]))
        same("logits [[1000, 0]], target [0]: exp(1000) overflows; subtract the row's largest", got, np.float64(0.0))
        sure = my.CrossEntropy(np.array([1, 0])).forward(np.array([[1000.0, 0.0], [0.0, 0.0]]))
    why = "p is too small for a number, -log p is not: log p = x - log(sum(exp(x)))"
    same(f"logits [[1000, 0], [0, 0]], targets [1, 0]: {why}", sure, np.float64((1000 + np.log(2)) / 2))
    check_backward(what, lambda: my.CrossEntropy(targets), [logits])


def exercise_5(my: Any) -> None:
    x, y = my.Tensor(np.zeros(2), True), my.Tensor(np.zeros(2), True)

    def clipped(limit: float) -> tuple[float, Any]:
        grads = my.GradStore()
        grads.add(x, np.array([1.0, -2.0]))
        grads.add(y, np.array([2.0, 4.0]))
        return my.clip([x, y], grads, limit), np.array([grads[x], grads[y]])

    (norm, after), what = clipped(1.0), "gradients [1, -2] and [2, 4] of two parameters"
    same(f"{what}, limit 1: the norm", norm, 5.0)
    same(f"{what}, limit 1: the gradients after", after, np.array([[0.2, -0.4], [0.4, 0.8]]))
    same(f"{what}, limit 10: the gradients after", clipped(10.0)[1], np.array([[1.0, -2.0], [2.0, 4.0]]))


def exercise_6(my: Any) -> None:
    def run(decay: float, *gradients: float, lr: float = 0.1) -> float:
        p, q = (my.Tensor(np.array([2.0]), True) for _ in range(2))
        first, optimizer = p.data, my.AdamW([p, q], lr=lr, decay=decay)
        for g in gradients:
            grads = my.GradStore()
            grads.add(p, np.array([g]))
            grads.add(q, np.array([g]))
            optimizer.step(grads)
        same("two parameters with equal numbers and gradients: the second as the first", q.data, p.data)
        require(first[0] == 2.0, "the step changed the array of p.data, which others may hold; give p.data a new one")
        return float(p.data[0])

    same("p = 2, g = 4, lr = 0.1, decay = 0: the first step has size lr", run(0.0, 4.0), 1.9)
    same("the same with decay = 0.5: p - 0.1 * (1 + 0.5 * 2)", run(0.5, 4.0), 1.8)
    same("the same with lr = 0.05: 2 - 0.05 * (1 + 0.5 * 2)", run(0.5, 4.0, lr=0.05), 1.9)
    same("g = 1e-8, as small as eps: 2 - 0.1 * 1e-8 / (1e-8 + 1e-8)", run(0.0, 1e-8), 1.95)
    m, v = (0.9 * 0.1 * 4 + 0.1 * 1) / (1 - 0.9**2), (0.95 * 0.05 * 16 + 0.05 * 1) / (1 - 0.95**2)
    same("two steps, g = 4, then g = 1", run(0.0, 4.0, 1.0), 1.9 - 0.1 * m / np.sqrt(v))
    want = 1.8 - 0.1 * (m / np.sqrt(v) + 0.5 * 1.8)
    same("the same with decay = 0.5 (it belongs to p alone: m and v see g as it is)", run(0.5, 4.0, 1.0), want)
