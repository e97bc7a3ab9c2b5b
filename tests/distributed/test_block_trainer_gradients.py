"""Gradients by block: sets of them, their accumulator, and the groups of buckets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from block_trainer_nets import Plain, batch
from data_parallel import assert_close

from minigrad import Tensor
from minigrad.distributed import (
    BlockGradientSet,
    BlockLayout,
    GradientBucketManager,
    NoOpCommunicator,
    PerBlockGradientAccumulator,
)


def test_block_gradient_set():
    params = [("a", Tensor(np.zeros((2, 3)))), ("b", Tensor(np.zeros(4)))]
    zero = BlockGradientSet.zeroed("block 0", params)
    assert zero.component_sizes == [6, 4] and not zero.flatten().data.any()
    flat = Tensor(np.arange(10.0))
    grads = BlockGradientSet.from_flat("block 0", flat, params)
    assert grads.components["b"].numpy().tolist() == [6, 7, 8, 9]
    zero.accumulate(grads)
    zero.accumulate(grads)
    zero.scale(0.25)
    np.testing.assert_array_equal(zero.flatten().numpy(), np.arange(10) / 2)
    assert not zero.has_non_finite()
    zero.components["b"].data[1] = 1e200  # its square is not finite, it is
    assert zero.non_finite() == []
    zero.components["b"].data[1] = math.inf
    assert zero.non_finite() == ["b"]
    for size in (9, 11, 0):
        with pytest.raises(ValueError, match=r"flat gradients have shape .* expected \(10,\)"):
            BlockGradientSet.from_flat("block 0", Tensor(np.zeros(size)), params)
    with pytest.raises(ValueError, match="float32 on cpu; parameter a is float64"):
        BlockGradientSet.from_flat("block 0", Tensor(np.zeros(10, np.float32)), params)
    with pytest.raises(ValueError, match="block 0: b is"):
        zero.accumulate(BlockGradientSet.zeroed("block 0", params[:1]))
    with pytest.raises(ValueError, match="components of one dtype"):
        BlockGradientSet("x", {"a": Tensor(np.zeros(1)), "b": Tensor(np.zeros(1, np.float32))}).flatten()


def test_per_block_gradient_accumulator():
    net = Plain()
    layout = BlockLayout.of(net)
    accumulator = PerBlockGradientAccumulator(layout, 4)
    for step, rows in enumerate((3, 9)):
        loss = net.loss(*map(Tensor, batch(0, slice(0, 3) if step == 0 else slice(3, 12))))
        assert accumulator.accumulate(loss.backward(), loss.item(), weight=rows) is None
    assert accumulator.accumulated_count == 2 and not accumulator.has_non_finite()
    for _ in range(2):
        accumulator.average()  # the second time nothing happens
    assert [one.name for one in accumulator.block_grads()] == [name for name in layout.names if name != "unused"]
    window, whole = accumulator.flush(), net.loss(*map(Tensor, batch(0)))
    assert window is not None and math.isclose(window[1], whole.item())
    for id, grad in whole.backward().items():
        assert_close(window[0][id].data, grad.data, 1e-12, str(id))
    assert PerBlockGradientAccumulator(layout).block_grads() == []


def test_groups_of_buckets_are_checked():
    comm, (a, b) = NoOpCommunicator(), (Tensor(np.zeros(2), requires_grad=True) for _ in range(2))
    for groups in ([[a]], [[a], [a, b]], [[a, a]]):
        with pytest.raises(ValueError, match="must be in exactly one group"):
            GradientBucketManager([a, b], comm, groups=groups)
    assert GradientBucketManager([a, b], comm, groups=[[b], [], [a]]).num_buckets == 2
    assert GradientBucketManager([a, b], comm, 8, groups=[[a, b]]).num_buckets == 2
