"""The solved chapters on rows of the library's own tests, in float64: its references' values, and its gradients.

With ``PYTHONPATH=FOLDER`` it takes the chapters of that folder, a learner's.
"""

import importlib.util

import numpy as np
import pytest

import minigrad as mg

HOME = "" if importlib.util.find_spec("chapter_04") else "minigrad.learn.chapters."
chapter_01, chapter_02, chapter_03, chapter_04 = (importlib.import_module(f"{HOME}chapter_0{k}") for k in range(1, 5))

ROWS = [  # a table of tests/ops, its row, the chapter's operation, made with the row's whole numbers; a scale of inputs
    *[("matmul", "matmul", chapter_02.MatMul, 1), ("softmax", "softmax--1", chapter_04.Softmax, 1)],
    ("cross_entropy", "cross_entropy-mean-0.0-ignore-100", chapter_03.CrossEntropy, 1),
    ("embedding", "embedding", chapter_04.Embedding, 1),
    ("layer_norm", "plain", chapter_04.LayerNorm, 0.1),  # of 0.1 x with eps 1e-5: that of x with the table's eps, 1e-3
    *(("reduce", f"sum-{dim}-keepdim", lambda dim=dim: chapter_02.Sum(dim, True), 1) for dim in (None, 0, -1)),
]


@pytest.mark.parametrize(("table", "name", "kind", "scale"), ROWS)
def test_a_chapter_passes_a_row_of_the_library_s_table(table, name, kind, scale):
    row = {op.name: op for op in reversed(importlib.import_module(f"ops.test_{table}").OPS)}[name]
    for arrays in map(row.inputs, row.shapes):
        floats, whole = ([x for x in arrays if (x.dtype.kind == "f") == is_float] for is_float in (True, False))
        if min(x.size for x in arrays) and {x.ndim for x in floats} <= {2, 3, 4}:  # what the chapters have
            op, tensors = kind(*whole), [mg.tensor(x, requires_grad=x.dtype.kind == "f") for x in arrays]
            y = row.run(*tensors)
            np.testing.assert_allclose(op.forward(*(scale * x for x in floats)), row.reference(*arrays), atol=1e-10)
            wanted, got = (y * y).sum().backward(), op.backward(2 * row.reference(*arrays))
            for x, mine in zip([t for t in tensors if t.requires_grad], got if isinstance(got, tuple) else (got,)):
                np.testing.assert_allclose(chapter_01.unbroadcast(scale * mine, x.shape), wanted[x].numpy(), atol=1e-10)
