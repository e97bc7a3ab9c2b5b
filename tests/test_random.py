"""Random tensors: reproducible, independent of threads, resumable, and distributed as they say."""

import collections
import itertools
import threading

import numpy as np
import pytest
from in_threads import outcomes
from refusals import raises

import minigrad as mg
from minigrad import Generator, Tensor
from minigrad.nn import functional as F
from minigrad.random import default_generator, drawing_from, fresh_seed

DRAWS = {
    "rand": lambda **kw: mg.rand(3, 5, **kw),
    "rand64": lambda **kw: mg.rand(3, 5, dtype="float64", **kw),
    "randn": lambda **kw: mg.randn(4, 7, **kw),
    "randn64": lambda **kw: mg.randn(4, 7, dtype="float64", **kw),
    "randint": lambda **kw: mg.randint(-5, 1000, (3, 5), **kw),
    "randperm": lambda **kw: mg.randperm(30, **kw),
    "multinomial": lambda **kw: mg.multinomial(mg.tensor([[1.0, 2.0, 3.0]]), 20, True, **kw),
    "dropout": lambda **kw: F.dropout(mg.ones(8, 8), 0.5, **kw),
    "uniform_": lambda **kw: mg.empty(3, 5).uniform_(-1, 2, **kw),
    "normal_": lambda **kw: mg.empty(3, 5).normal_(1, 2, **kw),
}


@pytest.fixture(autouse=True)
def _default_generator_as_before():
    state = default_generator.state_dict()
    yield
    default_generator.load_state_dict(state)


def same(x: Tensor, y: Tensor) -> bool:
    return x.dtype == y.dtype and np.array_equal(x.numpy(), y.numpy())


# ---------------------------------------------------------------------- reproducibility


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_same_seed_gives_the_same_numbers(draw) -> None:
    mg.manual_seed(np.int64(7))
    first, second = draw(), draw()
    assert not same(first, second)
    mg.manual_seed(7)
    assert same(draw(), first) and same(draw(), second)
    generator = Generator(7)
    assert same(draw(generator=generator), first) and generator.offset == 1
    mg.manual_seed(8)
    assert not same(draw(), first)


def test_numbers_are_pinned() -> None:
    """These are part of the format: a seed written down today must give the same weights tomorrow."""
    np.testing.assert_array_equal(
        mg.rand(4, generator=Generator(0)).numpy(),
        np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], np.uint64) // 256 / np.float32(2**24),
    )


def test_a_given_generator_leaves_the_default_alone() -> None:
    before = default_generator.state_dict()
    for draw in DRAWS.values():
        draw(generator=Generator(1))
    assert default_generator.state_dict() == before


# ---------------------------------------------------------------------- the generator


def test_state_is_saved_and_restored() -> None:
    generator = Generator(2**64 - 1)
    mg.rand(3, generator=generator)
    state = generator.state_dict()
    assert state == {"seed": 2**64 - 1, "offset": 1}
    want = [mg.rand(3, generator=generator) for _ in range(2)]
    other = Generator()
    other.load_state_dict(state)
    assert all(same(mg.rand(3, generator=other), x) for x in want)
    assert repr(other) == f"Generator(seed={2**64 - 1}, offset=3)"


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "1", None, True])
def test_seeds_out_of_range(seed) -> None:
    generator = Generator(5)
    raises(ValueError, r"expected an integer in \[0, 2\*\*64\)", lambda: generator.manual_seed(seed))
    assert generator.state_dict() == {"seed": 5, "offset": 0}
    raises(ValueError, "", Generator, seed)


@pytest.mark.parametrize("state", [{"seed": 1, "offset": -1}, {"seed": -1, "offset": 0}, {"seed": 1, "offset": 0.5}])
def test_a_bad_state_changes_nothing(state) -> None:
    generator = Generator(5)
    generator.next()
    raises(ValueError, "", generator.load_state_dict, state)
    assert generator.state_dict() == {"seed": 5, "offset": 1}


def test_concurrent_draws_never_share_an_offset() -> None:
    generator = Generator(1)
    offsets = outcomes(range(4), lambda _: [generator.next()[1] for _ in range(2000)])
    assert sorted(itertools.chain(*offsets.values())) == list(range(8000))


def test_fresh_seeds_are_seeds() -> None:
    seeds = fresh_seed(), fresh_seed()
    assert seeds[0] != seeds[1] and [Generator(seed).seed for seed in seeds] == [*seeds]


# ---------------------------------------------------------------------- distributions (seeds fixed, so never flaky)


def test_uniform_and_normal_in_place() -> None:
    x = mg.empty(20_000).uniform_(-2, 3, generator=Generator(1)).numpy()
    assert x.min() >= -2 and x.max() < 3.0001 and abs(x.mean() - 0.5) < 0.04
    part = mg.zeros(4, 6)
    part[:, ::2].normal_(generator=Generator(1))  # a view that is not contiguous
    assert (part.numpy()[:, ::2] != 0).all() and (part.numpy()[:, 1::2] == 0).all()
    for draw in (mg.Tensor.normal_, mg.Tensor.uniform_):
        raises(TypeError, "values are floating, not int64", lambda draw=draw: draw(mg.zeros(3, dtype="int64")))


@pytest.mark.parametrize(("dtype", "digits"), [("float16", 11), ("bfloat16", 8)])
def test_half_width_draws(dtype: str, digits: int) -> None:
    x = mg.rand(50_000, dtype=dtype, generator=Generator(1)).double().numpy() * 2**digits
    np.testing.assert_array_equal(x, np.floor(x))
    assert x.min() == 0 and x.max() == 2**digits - 1  # never 1, to which the nearest number may be rounded
    assert abs(x.mean() / 2**digits - (0.5 - 2.0 ** -(digits + 1))) < 0.004
    y = mg.randn(1000, dtype=dtype, generator=Generator(1))
    np.testing.assert_array_equal(y.numpy(), mg.randn(1000, generator=Generator(1)).to(dtype).numpy())
    assert mg.zeros(5, dtype=dtype).uniform_().dtype == dtype


def test_randint_covers_its_range_and_nothing_else() -> None:
    x = mg.randint(-3, 4, (200,), generator=Generator(15))
    assert x.dtype == mg.int64 and sorted(set(x.tolist())) == list(range(-3, 4))
    assert mg.randint(5, 6, 4).tolist() == [5] * 4
    assert sorted(set(mg.randint(3, (100,), generator=Generator(2)).tolist())) == [0, 1, 2]  # the high end alone
    wide = mg.randint(-(2**62), 2**62, (1000,), generator=Generator(1)).numpy()
    assert wide.min() < -(2**61) and wide.max() > 2**61
    for low, high in ((3, 3), (4, 3)):
        raises(ValueError, "no integer in", mg.randint, low, high, (2,))


def test_randperm_is_a_permutation_and_every_one_is_equally_likely() -> None:
    for n in (0, 1, 2, 1000):
        assert sorted(mg.randperm(n, generator=Generator(1)).tolist()) == list(range(n))
    generator = Generator(16)
    counts = collections.Counter(tuple(mg.randperm(3, generator=generator).tolist()) for _ in range(6000))
    assert len(counts) == 6
    assert sum((n - 1000) ** 2 / 1000 for n in counts.values()) < 20.5  # 99.9 % of 5 degrees of freedom
    raises(ValueError, "", mg.randperm, -1)


# ---------------------------------------------------------------------- multinomial


def test_multinomial_draws_in_proportion() -> None:
    weights = mg.tensor([[0.0, 1.0, 3.0, 0.0, 6.0, 0.0], [5.0, 0.0, 0.0, 0.0, 0.0, 5.0]])
    drawn = mg.multinomial(weights, 20_000, replacement=True, generator=Generator(17))
    assert drawn.shape == (2, 20_000) and drawn.dtype == mg.int64
    for row, p in zip(drawn.numpy(), weights.numpy() / 10, strict=True):
        counts = np.bincount(row, minlength=6)
        assert (counts[p == 0] == 0).all()
        q = p[p > 0]
        assert (((counts[p > 0] - 20_000 * q) ** 2) / (20_000 * q)).sum() < 13.8  # 99.9 % of 2 degrees of freedom


@pytest.mark.parametrize(
    "weights", [[0.0, 1.0, 0.0], [0.0, 5e-324, 0.0], [0.0, 1e308, 0.0], [1e308, 1e308, 1e308], [0.0, 1e-300, 1e300]]
)
def test_multinomial_of_extreme_weights(weights: list[float]) -> None:
    drawn = mg.multinomial(mg.tensor(weights, dtype="float64"), 500, True, generator=Generator(1)).numpy()
    counts = np.bincount(drawn, minlength=3)
    assert len(counts) == 3
    p = np.array(weights) / max(weights)
    assert (counts[p < 1e-300] == 0).all() and (counts[p > 0.5] > 100).all()


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-53])
def test_multinomial_at_the_edges_of_the_intervals(u: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "minigrad.methods.indexing.draw", lambda kind, kernels, shape, dtype, generator: np.full(shape, u)
    )
    assert mg.multinomial(mg.tensor([0.0, 0.0, 3.0, 0.0]), 1).tolist() == [2]
    assert mg.multinomial(mg.tensor([0.0, 1.0, 0.0, 1.0, 0.0]), 1).tolist() == [1 if u < 0.5 else 3]


def test_multinomial_shapes_and_dtypes() -> None:
    assert mg.multinomial(mg.ones(4), 3).shape == (3,)
    assert mg.multinomial(mg.ones(2, 5, 4), 3).shape == (2, 5, 3)
    assert mg.multinomial(mg.tensor([0, 7, 0]), 3, replacement=True).tolist() == [1, 1, 1]
    assert mg.multinomial(mg.ones(4), 0).shape == (0,)
    assert not mg.multinomial(mg.ones(4, requires_grad=True), 2).requires_grad


def test_multinomial_without_replacement_draws_from_those_that_are_left() -> None:
    p = np.array([0.1, 0.0, 0.3, 0.6])
    drawn = mg.tensor(p).expand(20_000, 4).multinomial(2, generator=Generator(5)).numpy()
    counts = collections.Counter(map(tuple, drawn.tolist()))
    assert len(counts) == 6  # ordered pairs of different indices above 0
    expected = {(i, j): 20_000 * p[i] * p[j] / (1 - p[i]) for i, j in counts}
    assert sum((counts[pair] - n) ** 2 / n for pair, n in expected.items()) < 20.5  # 99.9 % of 5 degrees of freedom
    all_of_them = mg.multinomial(mg.tensor([1e-300, 1e300, 1.0, 0.0], dtype=mg.float64), 3)
    assert sorted(all_of_them.tolist()) == [0, 1, 2] and all_of_them[0] == 1
    for weights, positive in ([1.0, 0.0, 2.0], 2), ([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]], 1):
        with pytest.raises(ValueError, match=f"num_samples=3 without replacement, but a row has {positive} weights"):
            mg.multinomial(mg.tensor(weights), 3)
    raises(ValueError, "num_samples=-1", lambda: mg.multinomial(mg.ones(3), -1))


def test_bernoulli_draws_with_the_given_probabilities():
    p = mg.tensor([0.0, 1.0, 0.25]).expand(20_000, 3)
    x = mg.bernoulli(p, generator=mg.Generator(3))
    assert x.dtype == mg.float32
    mean = x.mean(0).tolist()
    assert mean[:2] == [0, 1]
    assert abs(mean[2] - 0.25) < 0.02
    assert set(x.flatten().tolist()) == {0.0, 1.0}
    assert (x == p.bernoulli(generator=mg.Generator(3))).all()
    for wrong in (mg.tensor([1.5]), mg.tensor([float("nan")])):
        raises(ValueError, r"expected probabilities in \[0, 1\]", wrong.bernoulli)
    raises(TypeError, "bernoulli of a int64 tensor", lambda: mg.tensor([1]).bernoulli())


@pytest.mark.parametrize("dtype", [mg.float32, mg.float64])
def test_random_tensors_like_another(dtype):
    x = mg.zeros(3, 4, dtype=dtype)
    seed = lambda: mg.Generator(5)  # noqa: E731
    assert (mg.rand_like(x, generator=seed()) == mg.rand(3, 4, dtype=dtype, generator=seed())).all()
    assert (mg.randn_like(x, generator=seed()) == mg.randn(3, 4, dtype=dtype, generator=seed())).all()
    numbers = mg.randint_like(x, 2, 5, generator=seed())
    assert numbers.dtype == dtype
    assert (numbers == mg.randint(2, 5, (3, 4), generator=seed())).all()
    assert mg.randint_like(x, 7, dtype=mg.int64).dtype == mg.int64
    assert mg.rand_like(x, requires_grad=True).requires_grad


def test_a_thread_draws_from_a_generator_of_its_own():
    want = [mg.rand(3, generator=Generator(seed)).tolist() for seed in (5, 6)]
    before = default_generator.state_dict()
    start = threading.Barrier(2)

    def draw(seed: int) -> list[float]:
        with drawing_from(Generator(seed)):
            start.wait(10)
            return mg.rand(3).tolist()

    assert list(outcomes((5, 6), draw).values()) == want
    assert default_generator.state_dict() == before
    with drawing_from(Generator(5)):  # a generator that was asked for by name is not replaced
        assert mg.rand(3, generator=Generator(6)).tolist() == want[1]
    assert mg.rand(3, generator=Generator(5)).tolist() == want[0]
