"""DeviceArray has NumPy's metadata: shapes, strides and addresses of views are those of the same view of an ndarray."""

from __future__ import annotations

import ctypes
import gc
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from processes import python
from refusals import raises

import minigrad as mg
from minigrad import Tensor, cuda_kernels
from minigrad.cuda_kernels.platform import array, memory
from minigrad.cuda_kernels.platform.array import DeviceArray


def both(shape: tuple[int, ...] = (3, 4, 5)) -> tuple[np.ndarray, DeviceArray]:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return x, array.from_host(x)


def assert_same_view(y: DeviceArray, expected: np.ndarray, x: np.ndarray, root: DeviceArray) -> None:
    assert y.shape == expected.shape and y.dtype == expected.dtype
    if expected.size:
        steps = [s for n, s in zip(expected.shape, expected.strides, strict=True) if n > 1]
        assert [s for n, s in zip(y.shape, y.strides, strict=True) if n > 1] == steps
        assert y.pointer - root.pointer == expected.ctypes.data - x.ctypes.data
    assert y.base is root and y.flags.c_contiguous == expected.flags.c_contiguous
    np.testing.assert_array_equal(array.to_host(y), expected)


@pytest.mark.parametrize(
    "index",
    [0, -1, (1, 2), (1, 2, 3), slice(1, 3), (slice(None), 1), (..., 2), (None, 0), (slice(None, None, -1), 2)]
    + [(slice(2, 0, -1), slice(None), slice(None, None, 2)), (..., None), slice(3, 3), (1, ..., -2), ...],
    ids=str,
)
def test_basic_indexing(index: object) -> None:
    x, root = both()
    assert_same_view(root[index], x[index] if index != (1, 2, 3) else x[1, 2, 3, ...], x, root)


def test_other_indices_are_refused() -> None:
    _, root = both()
    for index in ([0, 1], np.array([0]), 1.0):
        raises(TypeError, "integers, slices, None and Ellipsis", lambda index=index: root[index])
    raises(IndexError, "", lambda: root[3])


def test_reshape_and_transpose() -> None:
    x, root = both((4, 6))
    assert_same_view(root.reshape(2, 12), x.reshape(2, 12), x, root)
    assert_same_view(root.reshape((3, -1)), x.reshape(3, 8), x, root)
    assert_same_view(root.T, x.T, x, root)
    assert_same_view(root[:, ::2].reshape(4, 3, 1), x[:, ::2].reshape(4, 3, 1), x, root)
    copied = root.T.reshape(-1)  # not possible as a view
    assert copied.base is not root
    np.testing.assert_array_equal(array.to_host(copied), x.T.reshape(-1))
    for wrong in ((5, 5), (-1, -1), (-1, 7)):
        raises(ValueError, "cannot reshape array of size 24|only specify one unknown", root.reshape, wrong)


def test_views_of_a_view_have_one_base() -> None:
    _, root = both()
    view = root[1][:, 1:]
    assert view.base is root and not view.flags.owndata and root.flags.owndata
    assert array.may_share_memory(view, root) and not array.may_share_memory(root[0], root[1])
    assert not array.may_share_memory(root, array.copy(root))
    assert not array.may_share_memory(root[3:], root)


def test_host_copies_keep_every_dtype() -> None:
    import ml_dtypes

    for dtype in (np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.uint8, bool):
        x = np.arange(6).reshape(2, 3).astype(dtype)
        y = array.to_host(array.from_host(x))
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, x)
    assert array.to_host(array.from_host(np.float32(3))).shape == ()
    np.testing.assert_array_equal(array.to_host(array.from_host(x.T)), x.T)
    bits = array.reinterpret(array.from_host(np.ones(3, np.float32)), np.int32)
    assert set(array.to_host(bits).tolist()) == {0x3F800000}
    raises(ValueError, "widths differ", lambda: array.reinterpret(bits, np.int64))


def test_memory_is_counted_and_given_back() -> None:
    gc.collect()  # else what other tests left is freed meanwhile
    before = memory.memory_allocated(0)
    view = array.empty((256, 1024), np.float32, 0)[3:]
    assert memory.memory_allocated(0) == before + (1 << 20)  # the view keeps it
    del view
    assert memory.memory_allocated(0) == before and memory.max_memory_allocated(0) >= before + (1 << 20)
    memory.reset_peak_memory_stats(0)
    assert memory.max_memory_allocated(0) == before


def test_out_of_memory_says_what_was_asked_and_what_is_held() -> None:
    x = array.empty(1 << 20, np.uint8, 0)
    words = r"cuda:0 is out of memory: 1048576\.0 MiB were asked for; arrays"
    raises(memory.OutOfMemoryError, words, array.empty, 1 << 40, np.uint8, 0)
    assert x.size == 1 << 20


def test_devices_have_memory_of_their_own() -> None:
    if memory.device_count() < 2:
        pytest.skip("one CUDA device")
    before = memory.current_device()
    x = array.from_host(np.arange(4.0), 1)
    assert x.device == 1 and array.copy(x).device == 1 and x[1:].device == 1
    y = array.from_device(x, 0)
    assert y.device == 0
    np.testing.assert_array_equal(array.to_host(y), np.arange(4.0))
    matrix = np.arange(35.0).reshape(5, 7)
    there = array.from_host(matrix, 1).T  # what is not contiguous is copied by a kernel, on the device where it is
    np.testing.assert_array_equal(array.to_host(array.from_device(there, 0)), matrix.T)
    np.testing.assert_array_equal(array.to_host(there), matrix.T)
    with memory.on_device(1):
        assert array.zeros(2, np.float32).device == 1
    assert memory.current_device() == before
    raises(ValueError, "there is no device cuda:99", lambda: memory.set_device(99))


def test_only_pinned_memory_is_copied_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, kept = [], []
    monkeypatch.setattr(memory, "copy_in", lambda target, source, wait: waits.append(wait))
    monkeypatch.setattr(memory, "copy_out", lambda target, source, wait: waits.append(wait))
    monkeypatch.setattr(memory, "keep_until_copied", kept.append)
    pinned = memory.pinned_empty((2, 3), np.float32)
    on_device = array.from_host(pinned, wait=False)
    back = array.to_host(on_device, wait=False)
    assert waits == [False, False]
    assert len(kept) == 2 and np.shares_memory(kept[0], pinned) and kept[1] is back
    for x in (pinned.T, np.ones((2, 3), np.float32)):  # a copy that is dropped at once, and pageable memory
        array.from_host(x, wait=False)
    array.from_host(pinned)
    array.to_host(on_device)
    assert waits[2:] == [True] * 4 and len(kept) == 2


def test_pinned_memory() -> None:
    pinned = memory.pinned_empty((2, 3), np.float32)
    pinned[...] = 7
    assert memory.is_pinned(pinned) and memory.is_pinned(pinned[1:]) and not memory.is_pinned(np.ones(3))
    on_device = array.from_host(pinned, wait=False)
    back = array.to_host(on_device, wait=False)
    memory.synchronize()
    assert memory.is_pinned(back) and (back == 7).all()


def test_a_tensor_shows_its_memory_to_other_libraries() -> None:
    x = mg.arange(6, device="cuda").reshape(2, 3).float()
    found = x.T.__cuda_array_interface__
    assert found["shape"] == (3, 2) and found["strides"] == (4, 12) and found["typestr"] == "<f4"
    assert found["data"] == (x.data.pointer, False) and found["version"] == 3 and found["stream"] > 0
    assert not hasattr(x.cpu(), "__cuda_array_interface__")  # which would be taken for a GPU's
    with pytest.raises(RuntimeError, match=r"requires grad .* use \.detach\(\)"):
        x.requires_grad_().__cuda_array_interface__  # noqa: B018


def test_a_stream_within_itself_leaves_the_device_as_it_was() -> None:
    if memory.device_count() < 2:
        pytest.skip("one CUDA device")
    stream = cuda_kernels.streams.Stream(1)
    with stream:
        with stream:
            assert memory.current_device() == 1
        assert memory.current_device() == 1
        memory.set_device(0)
        with stream:
            assert memory.current_device() == 1
        assert memory.current_device() == 0
    assert memory.current_device() == 0


def test_memory_that_lives_to_the_end_of_the_interpreter_goes_in_silence() -> None:
    """Modules are emptied then, with what an array's end would need."""
    program = """
import builtins, minigrad
from minigrad.cuda_kernels.platform import memory
memory.late = minigrad.ones(5).to("cuda").data
builtins.late = memory
"""
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")


class FakeCupy:
    """The part of CuPy that DLPack needs, on the simulator's memory; as CuPy, it neither says nor sees "read-only"."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x
        self.shape, self.dtype, self.strides = x.shape, x.dtype, x.strides
        self.data, self.device = SimpleNamespace(ptr=x.ctypes.data), SimpleNamespace(id=0)

    @staticmethod
    def from_dlpack(x) -> FakeCupy:
        capsule = x.__dlpack__(max_version=(1, 0))
        y = np.from_dlpack(OnCpu(capsule))
        return FakeCupy(np.lib.stride_tricks.as_strided(y, y.shape, y.strides))

    @staticmethod
    def of(x: DeviceArray) -> FakeCupy:
        raw = np.ctypeslib.as_array(ctypes.cast(x.pointer, ctypes.POINTER(ctypes.c_uint8)), (x.nbytes,))
        return FakeCupy(np.lib.stride_tricks.as_strided(raw.view(x.dtype), x.shape, x.strides))

    def __dlpack__(self, max_version=None, copy=None, **_):
        x = self.x.copy() if copy else self.x
        return x.__dlpack__(max_version=max_version)


class Producer:
    """What another library shares: a capsule of CUDA memory."""

    def __init__(self, capsule) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class OnCpu(Producer):
    """The same memory as NumPy takes it."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.skipif(not cuda_kernels.simulated(), reason="with CuPy itself: test_gpu.py")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_read_only_memory_stays_so_over_dlpack(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(array, "to_cupy", FakeCupy.of)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(from_dlpack=FakeCupy.from_dlpack))
    whole = mg.arange(3, device="cuda").to(dtype)
    read_only = Tensor.wrap(whole.data.view(whole.data.shape, whole.data.strides, writeable=False), whole.device)
    for x in (whole, read_only):
        y = mg.from_dlpack(Producer(x.__dlpack__(max_version=(1, 0))))
        assert y.data.pointer == whole.data.pointer and str(y.dtype) == dtype
        assert y.data.writeable == (x is whole)
    raises(RuntimeError, "read-only", lambda: y.fill_(1))
    raises(BufferError, r"without a version cannot say .* ask for max_version=\(1, 0\)", lambda: read_only.__dlpack__())
    assert mg.from_dlpack(Producer(whole.__dlpack__())).data.writeable
    assert mg.from_dlpack(Producer(read_only.__dlpack__(copy=True))).data.writeable


@pytest.mark.skipif(not cuda_kernels.simulated(), reason="with CuPy itself: test_gpu.py")
@pytest.mark.parametrize("read_only", [False, True])
def test_read_only_memory_stays_so_over_the_cuda_array_interface(monkeypatch, read_only) -> None:
    whole = mg.arange(3, device="cuda").data
    interface = {**whole.__cuda_array_interface__, "data": (whole.pointer, read_only)}
    monkeypatch.setattr(array, "SIMULATED", False)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=lambda _: FakeCupy.of(whole)))
    x = mg.as_tensor(SimpleNamespace(__cuda_array_interface__=interface))
    assert x.data.pointer == whole.pointer and x.data.writeable != read_only
