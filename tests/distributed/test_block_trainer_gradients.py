"""Gradients by block: which are not finite, and the groups of buckets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from minigrad import Tensor
from minigrad.distributed import GradientBucketManager, NoOpCommunicator
from minigrad.distributed.train.blocks import non_finite


def test_what_is_not_finite_is_named():
    grads = {"a": Tensor(np.zeros((2, 3))), "b": Tensor(np.array([0.0, 1e200]))}
    assert non_finite(grads) == []  # 1e200 is finite, its square is not
    grads["b"].data[1] = math.inf
    assert non_finite(grads) == ["b"] and non_finite({}) == []


def test_groups_of_buckets_are_checked():
    comm, (a, b) = NoOpCommunicator(), (Tensor(np.zeros(2), requires_grad=True) for _ in range(2))
    for groups in ([[a]], [[a], [a, b]], [[a, a]]):
        with pytest.raises(ValueError, match="must be in exactly one group"):
            GradientBucketManager([a, b], comm, groups=groups)
    assert GradientBucketManager([a, b], comm, groups=[[b], [], [a]]).num_buckets == 2
    assert GradientBucketManager([a, b], comm, 8, groups=[[a, b]]).num_buckets == 2
