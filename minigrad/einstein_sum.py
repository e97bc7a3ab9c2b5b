"""Einstein's sum convention: ``einsum("bik,bkj->bij", a, b)`` is a batched matrix product.

``tensordot`` is written in it. Nothing new is computed here. Operands are taken one after the other; each
pair becomes one product of (batches of) matrices by permute, reshape and matmul, or an elementwise product if no index
is summed. So the gradients are those of these operations, and which ones these are is noted down once for an equation
and shapes.
"""

import functools
import math
import re
from collections.abc import Collection, Sequence
from string import ascii_letters
from typing import Any, NamedTuple

from . import dtypes
from .errors import bad_type, bad_value, check_int
from .shapes import normalize_dim
from .tensor import Tensor, check_tensor

Labels = list[str | int]  # of an operand's dimensions: letters, and for those of "..." -1, -2, ... from the right

TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Products of elements, summed over the indices that are not in the output: ``einsum("ij,jk->ik", a, b)``.

    A letter twice in one operand takes its diagonal; ``...`` stands for dimensions that broadcast; without ``->`` the
    output has "..." and the letters that occur once, in alphabetical order. Sizes of 1 broadcast.
    Raises ValueError for an equation that does not fit the operands.
    """
    if len(operands) == 1 and isinstance(operands[0], list | tuple):  # all in one, which PyTorch takes too
        operands = tuple(operands[0])
    if not isinstance(equation, str) or not all(isinstance(x, Tensor) for x in operands):
        kinds = ", ".join(type(x).__name__ for x in operands)
        raise bad_type(f"einsum {equation!r}: operands {kinds}; expected a string, and tensors")
    steps = _plan(equation, tuple([x.shape for x in operands]))
    dtype = dtypes.result_dtype([x.data for x in operands])
    computed = sum(name in ("sum", "__matmul__", "__mul__") for name, *_ in steps)
    if dtypes.is_half(dtype) and computed > 1:  # rounded once
        return einsum(equation, *(x.float() for x in operands)).to(dtype)
    values = [*operands]
    for name, slot, args in steps:
        values.append(getattr(values[slot], name)(*[values[x.slot] if isinstance(x, _Noted) else x for x in args]))
    return values[-1]


class _Noted(NamedTuple):
    """Stands for a tensor while steps are noted."""

    steps: list[Any]
    slot: int
    shape: tuple[int, ...]

    def then(self, name: str, shape: Sequence[int], *args: Any) -> "_Noted":
        """What a method gives, of this shape."""
        self.steps.append((name, self.slot, args))
        return _Noted(self.steps, self.steps[0] + len(self.steps) - 2, tuple(shape))


@functools.lru_cache(1024)
def _plan(equation: str, shapes: tuple[tuple[int, ...], ...]) -> list[tuple[str, int, tuple[Any, ...]]]:
    """Names of methods, of which operand or result before, and their arguments."""
    steps: list[Any] = [len(shapes)]
    operands = [_Noted(steps, i, shape) for i, shape in enumerate(shapes)]
    labels, output = _parse(equation, shapes)
    sizes: dict[str | int, int] = {}
    for x, found in zip(operands, labels, strict=True):
        for label, n in zip(found, x.shape, strict=True):
            known = sizes.get(label, 1)
            if n != 1 and known not in (1, n):
                raise bad_value(f"einsum {equation!r}: {label!r} has sizes {known} and {n}, which do not broadcast")
            sizes[label] = known if n == 1 else n
    terms = [_plain(x, found, sizes) for x, found in zip(operands, labels, strict=True)]
    result, have = terms[0]
    for i in range(1, len(terms)):
        needed = set(output).union(*(found for _, found in terms[i + 1 :]))
        result, have = _product(result, have, *terms[i], needed)
    result, have = _sum_all_but(result, have, output)
    _ordered(result, have, output)
    return steps[1:]


def _parse(equation: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[list[Labels], Labels]:
    """The labels of each operand and of the output."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = [TERM.fullmatch(term) for term in left.split(",")]
    if len(terms) != len(shapes):
        raise bad_value(f"einsum {equation!r}: {len(terms)} terms for {len(shapes)} operands; expected tensors")
    labels: list[Labels] = []
    for text, term, shape in zip(left.split(","), terms, shapes, strict=True):
        if term is None:
            raise bad_value(f"einsum {equation!r}: {text!r} is not of letters and '...'; '->' stands before the output")
        hidden = len(shape) - len(term[1]) - len(term[3])
        if hidden < 0 or (hidden and not term[2]):
            raise bad_value(f"einsum {equation!r}: operand {len(labels)} is {shape}; a dimension needs a letter")
        labels.append([*term[1], *range(-hidden, 0), *term[3]])
    every = [label for found in labels for label in found]
    hidden = max((-label for label in every if isinstance(label, int)), default=0)
    letters = [label for label in every if isinstance(label, str)]
    if not arrow:
        return labels, [*range(-hidden, 0), *sorted(label for label in letters if letters.count(label) == 1)]
    term = TERM.fullmatch(right)
    if term is None or len(set(term[1] + term[3])) < len(term[1] + term[3]) or not set(term[1] + term[3]) <= {*letters}:
        raise bad_value(f"einsum {equation!r}: the output has each of its letters once, and from the operands")
    return labels, [*term[1], *(range(-hidden, 0) if term[2] else ()), *term[3]]


def _plain(x: _Noted, labels: Labels, sizes: dict[str | int, int]) -> tuple[_Noted, Labels]:
    """The operand with diagonals instead of repeated labels, and without dimensions of size 1 that broadcast."""
    labels = list(labels)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            if x.shape[i] != x.shape[j]:
                raise bad_value(f"einsum: {label!r} occurs twice in an operand, with sizes {x.shape[i]}, {x.shape[j]}")
            shape = [n for k, n in enumerate(x.shape) if k not in (i, j)]
            x = x.then("diagonal", [*shape, x.shape[i]], 0, i, j)
            labels = [*labels[:i], *labels[i + 1 : j], *labels[j + 1 :], label]
    kept = [i for i, label in enumerate(labels) if x.shape[i] == sizes[label]]
    if len(kept) < len(labels):
        x = _shaped(x, [x.shape[i] for i in kept])
    return x, [labels[i] for i in kept]


def _sum_all_but(x: _Noted, labels: Labels, kept: Collection[str | int]) -> tuple[_Noted, Labels]:
    dims = tuple(i for i, label in enumerate(labels) if label not in kept)
    shape = [n for i, n in enumerate(x.shape) if i not in dims]
    return (x.then("sum", shape, dims) if dims else x), [label for label in labels if label in kept]


def _product(a: _Noted, a_labels: Labels, b: _Noted, b_labels: Labels, kept: set[str | int]) -> tuple[_Noted, Labels]:
    """The product of two operands, summed over what is not kept; its labels are in an order of its own."""
    a, a_labels = _sum_all_but(a, a_labels, kept.union(b_labels))
    b, b_labels = _sum_all_but(b, b_labels, kept.union(a_labels))
    shared = [label for label in a_labels if label in b_labels]
    batch, inner = [x for x in shared if x in kept], [x for x in shared if x not in kept]
    rows, columns = [x for x in a_labels if x not in shared], [x for x in b_labels if x not in shared]
    a = _ordered(a, a_labels, [*batch, *rows, *inner])
    b = _ordered(b, b_labels, [*batch, *inner, *columns])
    outer = a.shape[: len(batch) + len(rows)]
    shape = (*outer, *b.shape[len(shared) :])
    if not inner:
        b = _shaped(b, (*b.shape[: len(batch)], *(1,) * len(rows), *b.shape[len(batch) :]))
        return _shaped(a, (*outer, *(1,) * len(columns))).then("__mul__", shape, b), [*batch, *rows, *columns]
    k = math.prod(b.shape[len(batch) : len(shared)])
    batches = (math.prod(outer[: len(batch)]),) if batch else ()
    left = _shaped(a, (*batches, math.prod(outer[len(batch) :]), k))
    right = _shaped(b, (*batches, k, math.prod(shape[len(outer) :])))
    product = left.then("__matmul__", (*left.shape[:-1], right.shape[-1]), right)
    return _shaped(product, shape), [*batch, *rows, *columns]


def _ordered(x: _Noted, have: Labels, wanted: Labels) -> _Noted:
    order = tuple(have.index(label) for label in wanted)
    return x if have == wanted else x.then("permute", [x.shape[i] for i in order], order)


def _shaped(x: _Noted, shape: Sequence[int]) -> _Noted:
    return x if x.shape == tuple(shape) else x.then("reshape", shape, tuple(shape))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """Kronecker product: ``input`` with each of its elements replaced by that element times ``other``."""
    n = max(check_tensor("kron", t).ndim for t in (input, other))
    x, y = (t if t.ndim == n else t[(None,) * (n - t.ndim)] for t in (input, other))
    shape, apart = [a * b for a, b in zip(x.shape, y.shape)], n
    if n and y.shape[-1] > 1 and math.prod(shape) >= 16384:  # rows as long as the result's are worth two more copies
        x, y, apart = x.repeat_interleave(y.shape[-1], -1), y.tile(x.shape[-1]), n - 1
    return (x[(slice(None), None) * apart] * y[(None, slice(None)) * apart]).reshape(shape)


def tensordot(a: Tensor, b: Tensor, dims: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """Sums of products over ``dims``: so many of the last dimensions of a and the first of b, or lists of both."""
    first = check_tensor("tensordot", a).ndim - check_int("dims", dims, 0) if isinstance(dims, int) else 0
    last = (range(first, a.ndim), range(dims)) if isinstance(dims, int) else dims
    i, j = ([normalize_dim(dim, check_tensor("tensordot", t).ndim) for dim in some] for t, some in zip((a, b), last))
    if [a.shape[k] for k in i] != [b.shape[k] for k in j] or len({*i}) < len(i) or len({*j}) < len(j):
        raise bad_value(f"tensordot of shapes {a.shape} and {b.shape} over {dims}: expected equal sizes, in pairs")
    of_a, of_b = ascii_letters[: a.ndim], [*ascii_letters[a.ndim : a.ndim + b.ndim]]
    for of_both, place in zip(i, j):
        of_b[place] = of_a[of_both]
    rest = "".join(sorted({*of_a} ^ {*of_b}, key=ascii_letters.index))
    return einsum(f"{of_a},{''.join(of_b)}->{rest}", a, b)
