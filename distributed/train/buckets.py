"""GradientBucketManager: gradients in flat buffers, reduced while backward still computes the others.

Parameters are put into buckets in reverse order, which is roughly that in which backward finishes their gradients:

    backward ->   head ... block 3 ... block 2 ... block 1 ... embedding
    buckets       [------ 0 ------][------- 1 -------][------- 2 -------]
    all-reduce             0 ------>        1 ------>          2 ------>

A bucket is sent when it is full and all before it have been sent. So every rank sends the same buckets in the same
order, whatever order its gradients come in.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (2020).
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from minigrad import GradStore, Tensor, TensorId, bfloat16, empty, zeros
from minigrad.errors import check_int

from ..comm.calls import ReduceOp, Work
from ..comm.comm_errors import CommError
from ..comm.communicator import Communicator
from .step import merged, misfit

DEFAULT_BUCKET_BYTES = 25 * 2**20


class CommHook(Protocol):
    """How a bucket is averaged over the ranks; a place for compression."""

    def __call__(self, communicator: Communicator, bucket: Tensor) -> Work:
        """Begin to replace ``bucket``, flat and contiguous, by its mean over all ranks; after the returned Work's
        ``wait`` it must have the same bits on every rank.
        """


def all_reduce_hook(communicator: Communicator, bucket: Tensor) -> Work:
    """The plain all-reduce."""
    return communicator.all_reduce(bucket, ReduceOp.AVG, async_op=True)


class BFloat16Compression:
    """Sends gradients as bfloat16: half of float32's bytes, 8 bits of precision, the same range.

    Pass it as a trainer's ``hook``. Each rank's gradient is rounded once, and their mean once more, each time by at
    most 2^-8 of its value: together by at most 2^-7 (and a little) of the ranks' mean absolute value. All ranks round
    alike, so their weights stay equal.
    """

    def __call__(self, communicator: Communicator, bucket: Tensor) -> Work:
        sent = bucket.to(bfloat16)
        return _Decompress(communicator.all_reduce(sent, ReduceOp.AVG, async_op=True), sent, bucket)


class _Decompress(Work):
    def __init__(self, work: Work, sent: Tensor, bucket: Tensor) -> None:
        self._work, self._sent, self._bucket = work, sent, bucket

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def wait(self, timeout: float | None = None) -> None:
        self._work.wait(timeout)
        self._bucket.device.kernels.elementwise.assign(self._bucket.data, self._sent.data)


class Bucket:
    """One flat buffer, and where in it each parameter's gradient is. It takes its memory when that is first used."""

    def __init__(self, params: Sequence[Tensor], parts: int = 1) -> None:
        self.params: Sequence[Tensor] = params
        self.ids: list[TensorId] = [p.id for p in params]
        self.size: int = -(-sum(p.numel() for p in params) // parts) * parts
        self.ready: set[TensorId] = set()
        self.work: Work | None = None

    @functools.cached_property
    def flat(self) -> Tensor:
        """The buffer, (size,), 0 behind the parameters."""
        out = empty(self.size, dtype=self.params[0].dtype, device=self.params[0].device)
        out.device.kernels.elementwise.assign(out.data[sum(p.numel() for p in self.params) :], 0)
        return out

    def new_zeros(self, n: int) -> Tensor:
        """Memory (n,) like that of its parameters."""
        return zeros(n, dtype=self.params[0].dtype, device=self.params[0].device)

    def views_of(self, flat: Tensor) -> dict[TensorId, Any]:
        """Each parameter's place in a buffer of this size, a raw array of its shape."""
        ends = itertools.accumulate(p.numel() for p in self.params)
        return {p.id: flat.data[end - p.numel() : end].reshape(p.shape) for p, end in zip(self.params, ends)}

    @functools.cached_property
    def views(self) -> dict[TensorId, Any]:
        """Each parameter's place in the buffer, a raw array of its shape."""
        return self.views_of(self.flat)

    @property
    def reduced(self) -> Tensor:
        """What this rank has of the mean over the ranks, when it is there."""
        return self.flat

    def grads(self, absent: Sequence[Tensor] = ()) -> GradStore:
        """Its parameters' gradients, as views, without those of the ``absent`` ones."""
        kept = self.views.keys() - {p.id for p in absent}
        return GradStore({id: Tensor.wrap(v, self.flat.device) for id, v in self.views.items() if id in kept})

    def wait(self) -> None:
        """Until it is reduced, if it was sent."""
        work, self.work = self.work, None
        if work is not None:
            work.wait()


class GradientBucketManager:
    """Collects the gradients of ``params`` in buckets and averages each over the ranks as soon as it is full.

    ::

        manager = GradientBucketManager(params, communicator)
        loss.backward(hook=...)         # whose on_leaf_grad_ready calls manager.mark_grad_ready(id, grad)
        grads = manager.wait_and_unflatten()

    ``params`` must have the same order on every rank. A bucket is closed before the parameter that would take it above
    ``bucket_size_bytes``; it holds one dtype. A parameter larger than that has a bucket of its own. ``groups`` part the
    parameters, in the order in which they are to be sent: no bucket then holds parameters of two groups.

    ``inspect`` is shown each bucket's own gradients just before they are sent. ``bucket`` makes a bucket of parameters.

    ``num_buckets`` says how many there are. The buffers stay for the next window and are the only memory held: a
    gradient that is marked ready moves into its bucket. Raises ValueError for a ``bucket_size_bytes`` that is no
    positive integer, a parameter given twice, or groups that do not hold each parameter once.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        communicator: Communicator,
        bucket_size_bytes: int = DEFAULT_BUCKET_BYTES,
        hook: CommHook = all_reduce_hook,
        *,
        groups: Sequence[Sequence[Tensor]] | None = None,
        inspect: Callable[[GradStore], None] | None = None,
        bucket: Callable[[Sequence[Tensor]], Bucket] = Bucket,
    ) -> None:
        check_int("bucket_size_bytes", bucket_size_bytes, 1)
        if len({p.id for p in params}) != len(params):
            raise ValueError("a parameter was given twice; each has one gradient")
        if groups is None:
            groups = [params]
        elif sorted(p.id for group in groups for p in group) != sorted(p.id for p in params):
            held = f"the {len(groups)} groups hold {sum(map(len, groups))} parameters"
            raise ValueError(f"{held}; each of the {len(params)} must be in exactly one group")
        self._communicator, self._hook, self._inspect = communicator, hook, inspect
        self.buckets: list[Bucket] = [bucket(part) for group in groups for part in filled(group, bucket_size_bytes)]
        self._bucket_of = {id: each for each in self.buckets for id in each.ids}
        self.num_buckets: int = len(self.buckets)
        self._launched = 0

    def send(self, bucket: Bucket) -> None:
        """Begin to reduce a bucket."""
        bucket.work = self._hook(self._communicator, bucket.flat)

    def __contains__(self, id: TensorId) -> bool:
        return id in self._bucket_of

    def is_ready(self, id: TensorId) -> bool:
        """Whether the parameter's gradient was marked ready in this window."""
        return id in self._bucket_of[id].ready

    def mark_grad_ready(self, id: TensorId, grad: Tensor) -> None:
        """Move a gradient into its bucket; ``grad`` then is a view of that. Sends the bucket if it is complete.

        Raises ValueError for a tensor that the manager does not know, and for its second gradient in a window. It is
        raised, too, for another shape, dtype or device than its parameter's.
        """
        bucket = self._bucket_of.get(id)
        if bucket is None:
            raise ValueError(f"tensor {int(id)} is not one of the {len(self._bucket_of)} parameters in the buckets")
        if id in bucket.ready:
            raise ValueError(f"the gradient of tensor {int(id)} was marked ready twice in one window")
        view, flat = bucket.views[id], bucket.flat
        if (grad.shape, grad.dtype, grad.device) != (tuple(view.shape), flat.dtype, flat.device):
            raise misfit(f"the gradient of tensor {int(id)}", grad, Tensor.wrap(view, flat.device))
        grad.device.kernels.elementwise.assign(view, grad.data)
        grad.data = view
        bucket.ready.add(id)
        self._launch_complete()

    def launch_rest(self, end: int | None = None) -> None:
        """Send what has not been sent of the buckets before ``end``, with zeros for the gradients that did not come."""
        for bucket in self.buckets[self._launched : end]:
            for id, view in bucket.views.items():
                if id not in bucket.ready:
                    bucket.flat.device.kernels.elementwise.assign(view, 0)
                    bucket.ready.add(id)
            self._launch_complete()

    def _launch_complete(self) -> None:
        while self._launched < len(self.buckets):
            bucket = self.buckets[self._launched]
            if len(bucket.ready) < len(bucket.ids):
                return
            if self._inspect is not None:
                self._inspect(bucket.grads())
            self.send(bucket)
            self._launched += 1

    def wait_each(self, absent: Sequence[Tensor] = (), factor: float = 1.0) -> Iterator[GradStore]:
        """``launch_rest``, then each bucket's gradients times ``factor`` as soon as they have arrived, without those of
        the ``absent`` parameters; afterwards a new window begins.

        The gradients are views of the buckets, valid until the next window's are marked ready.
        """
        self.launch_rest()
        try:
            for bucket in self.buckets:
                bucket.wait()
                if factor != 1.0:
                    bucket.reduced.device.kernels.grad_norm.scale_([bucket.reduced.data], factor)
                yield bucket.grads(absent)
        finally:
            self.reset()

    def wait_and_unflatten(self) -> GradStore:
        """All gradients of the window, averaged over the ranks (boostr's ``wait_and_unflatten``)."""
        return merged(self.wait_each())

    def reset(self) -> None:
        """Drop the window and begin a new one, after waiting for what is under way.

        Does not raise: where communication failed, the next bucket that is sent says so.
        """
        for bucket in self.buckets:
            with contextlib.suppress(CommError):
                bucket.wait()
            bucket.ready.clear()
        self._launched = 0


def filled(params: Sequence[Tensor], bucket_size_bytes: int) -> list[list[Tensor]]:
    """Parameters from the last to the first, by buckets; those of each dtype and device form buckets of their own."""
    groups: list[list[Tensor]] = []
    open_groups: dict[Any, tuple[list[Tensor], int]] = {}
    for p in reversed(params):
        key = p.device, p.dtype
        group, size = open_groups.get(key, ([], 0))
        if not group or size + p.data.nbytes > bucket_size_bytes:
            group, size = [], 0
            groups.append(group)
        group.append(p)
        open_groups[key] = group, size + p.data.nbytes
    return groups
