"""The solved chapters on rows of the library's own tests, in float64: its references' values, and its gradients.

With ``PYTHONPATH=FOLDER`` it takes the chapters of that folder, a learner's: chapter 4 says how.
"""

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
from optimizer_cases import CASES, make_grads, make_params

import minigrad as mg

HOME = "" if importlib.util.find_spec("chapter_04") else "minigrad.learn.chapters."
chapter_02, chapter_03, chapter_04 = (importlib.import_module(f"{HOME}chapter_0{k}") for k in (2, 3, 4))
ZERO = chapter_02.Tensor(0.0)


def heads(qkv):
    """split, attention, join: q, k and v are products of qkv (B, T, 3 H D) and thirds of the unit matrix."""
    B, T, _, H, D = qkv.shape
    thirds = np.split(np.eye(3 * H * D), 3, axis=1)
    q, k, v = (chapter_04.split(qkv.reshape(B, T, 3 * H * D) @ third, H) for third in thirds)
    return chapter_04.join(chapter_04.attention(q, k, v)).reshape(B, T, H, D)


ROWS = [  # a table of tests/ops, its row, and the same by the chapters, for tensors and for whole numbers as they are
    ("elementwise", "add", lambda x, y: x + y),
    ("elementwise", "mul", lambda x, y: x * y),
    ("elementwise", "tanh", lambda x: x.tanh()),
    ("elementwise", "relu", lambda x: chapter_03.Relu()(x)),
    *(("reduce", f"sum-{dim}-keepdim", lambda x, dim=dim: x.sum(dim, True)) for dim in (None, 0, -1)),
    ("movement", "permute", lambda x: x.transpose(2, 0, 1)),
    ("matmul", "matmul", lambda x, y: x @ y),
    ("linear", "linear", lambda x, w: chapter_03.Linear.forward(SimpleNamespace(weight=w, bias=ZERO), x)),
    ("softmax", "softmax--1", lambda x: chapter_04.Softmax()(x)),
    ("cross_entropy", "cross_entropy-mean-0.0-ignore-100", lambda x, targets: chapter_03.CrossEntropy(targets)(x)),
    ("embedding", "embedding", lambda table, places: chapter_04.Embedding(places)(table)),
    ("layer_norm", "plain", lambda x: chapter_04.LayerNorm()(x * 0.1)),  # its eps is 1e-5, the table's 1e-3
    ("attention", "causal", lambda q, k, v: chapter_04.attention(q, k, v)),
    ("attention", "packed_causal", heads),
]


@pytest.mark.parametrize(("table", "name", "call"), ROWS)
def test_a_chapter_passes_a_row_of_the_library_s_table(table, name, call):
    row = {op.name: op for op in reversed(importlib.import_module(f"ops.test_{table}").OPS)}[name]
    alike = 2 if table == "attention" else 1  # shapes: there a query stands at the place of its key
    shapes = [s for s in row.shapes if min(map(np.prod, s)) and len(set(s[:alike])) == 1]
    ran = [arrays for arrays in map(row.inputs, shapes) if all(x.ndim > 1 for x in arrays if x.dtype.kind == "f")]
    for arrays in ran:
        theirs = [mg.tensor(x, requires_grad=x.dtype.kind == "f") for x in arrays]
        ours = [chapter_02.Tensor(x, True) if x.dtype.kind == "f" else x for x in arrays]
        y, mine = row.run(*theirs), call(*ours)
        np.testing.assert_allclose(mine.data, row.reference(*arrays), atol=1e-10)
        wanted, got = (y * y).sum().backward(), chapter_02.backward((mine * mine).sum())
        for x, own in ((x, own) for x, own in zip(theirs, ours) if x.requires_grad):
            np.testing.assert_allclose(got[own], wanted[x].numpy(), atol=1e-10)
    assert ran


def test_clipping_and_adamw_are_the_library_s():
    theirs = make_params(np.float64)
    ours = [chapter_02.Tensor(p.data.copy(), True) for p in theirs]
    optimizer, mine = CASES["AdamW"].make(theirs, betas=(0.9, 0.95)), chapter_03.AdamW(ours, lr=0.02, decay=0.1)
    for step in range(5):
        grads, store = make_grads(theirs, step), chapter_02.GradStore()
        for p, own in zip(theirs, ours):
            store.add(own, grads[p].numpy())
        np.testing.assert_allclose(chapter_03.clip(ours, store, 9.0), mg.optim.clip_grad_norm(grads, 9.0))
        optimizer.step(grads)
        mine.step(store)
    assert all(np.allclose(own.data, p.data, atol=1e-12) for p, own in zip(theirs, ours))
