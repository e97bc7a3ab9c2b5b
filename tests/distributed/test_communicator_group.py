"""CommunicatorGroup: the communicators of data x pipeline x tensor. What is trained over them, test_mesh.py says."""

import pytest
from refusals import raises

from minigrad import distributed as dist


def test_the_ranks_of_each_dimension():
    def places(world: dist.Communicator) -> list[tuple[int, int]]:
        group = dist.CommunicatorGroup(world, data=2, pipeline=3, tensor=2)
        parts = [(one.rank, one.world_size) for one in (group.data, group.pipeline, group.tensor, group.model)]
        group.close()
        return parts

    found = dist.run_threads(12, places, timeout=30)
    for d in range(2):
        for p in range(3):
            for t in range(2):
                assert found[(d * 3 + p) * 2 + t] == [(d, 2), (p, 3), (t, 2), (p * 2 + t, 6)]


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"2 x 1 x 1 ranks \(data, pipeline, tensor\) of 1"):
        dist.CommunicatorGroup(dist.NoOpCommunicator(), data=2)
    raises(ValueError, "tensor is 0", lambda: dist.CommunicatorGroup(dist.NoOpCommunicator(), tensor=0))
    alone = dist.CommunicatorGroup(dist.NoOpCommunicator())
    assert alone.data.world_size == alone.pipeline.world_size == alone.tensor.world_size == 1
