"""What holds before the first step: checked settings, shards of batches, and the same weights on all ranks."""

from block_trainer_nets import Net, batch, held
from refusals import raises

from minigrad import distributed as dist


def test_must_config_fits_the_communicator():
    assert dist.DistributedTrainConfig(2, 1, role="worker", backend="cuda", coordinator_addr="[::1]:9000").rank == 1
    assert dist.DistributedTrainConfig(2).is_coordinator and not dist.DistributedTrainConfig(2, 1).is_coordinator
    for options, words in [
        ({"config": dist.DistributedTrainConfig(2)}, "the communicator's that of rank 0 of 1 on cpu"),
        ({"config": dist.DistributedTrainConfig(1, backend="cuda")}, "the communicator's that of rank 0 of 1 on cpu"),
        ({"log_every": 0}, "log_every is 0"),
        ({"max_steps": 0}, "max_steps is 0, expected an integer >= 1"),
    ]:
        raises(ValueError, words, dist.BlockDistributedTrainer, Net(), dist.NoOpCommunicator(), **options)


def test_a_trainer_knows_when_its_steps_are_made():
    trainer = dist.BlockDistributedTrainer(Net(), dist.NoOpCommunicator(), max_steps=2)
    reached = [(trainer.train_batch(*batch(0)), trainer.reached_max_steps)[1] for _ in range(2)]
    assert reached == [False, True] and (trainer.rank, trainer.world_size) == (0, 1)


def test_must_start_sync_gives_all_rank_0s_weights_and_buffers():
    def body(comm: dist.ThreadCommunicator):
        net = Net(seed=comm.rank)
        net.blocks[1].statistic.mean.data[...] = comm.rank + 5.0
        dist.BlockDistributedTrainer(net, comm)
        return held(net)

    want = Net(seed=0)
    want.blocks[1].statistic.mean.data[...] = 5.0
    assert dist.run_threads(3, body, timeout=20) == [held(want)] * 3


def test_must_sharding_vectors_are_disjoint_and_complete():
    for n, world, want in [
        (10, 2, [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]),
        (7, 3, [[0, 3, 6], [1, 4], [2, 5]]),
        (5, 1, [[0, 1, 2, 3, 4]]),
        (2, 4, [[0], [1], [], []]),
    ]:
        found = [list(dist.shard_batches(n, rank, world)) for rank in range(world)]
        assert found == want and sorted(i for one in found for i in one) == list(range(n))
