"""DLPack both ways: the same memory, the same dtypes, and what is refused."""

import numpy as np
import pytest
from harness import needs_torch, torch
from refusals import raises

import minigrad as mg

DTYPES = ["float32", "float64", "float16", "int64", "int32", "uint8", "bool"]
VIEWS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.T,
    "strided": lambda x: x[::2, 1:],
    "0-d": lambda x: x[1, 2],
    "empty": lambda x: x[:0],
}


def values(dtype: str) -> np.ndarray:
    return (np.arange(12).reshape(3, 4) % 5).astype(dtype)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_shares_the_memory(dtype: str, view) -> None:
    x = view(mg.tensor(values(dtype)))
    base = np.asarray(view(values(dtype)))
    a, y = np.from_dlpack(x), mg.from_dlpack(base)
    for found, source in ((a, x.numpy()), (y.numpy(), base)):
        assert found.dtype == dtype and found.shape == base.shape
        np.testing.assert_array_equal(found, base)
        assert found.size == 0 or np.shares_memory(found, source)


@needs_torch
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_torch_shares_the_memory(dtype: str, view) -> None:
    whole = mg.tensor(values("int64")).to(dtype)
    x = view(whole)
    t = torch.from_dlpack(x)
    assert str(t.dtype) == f"torch.{dtype}" and tuple(t.shape) == x.shape
    assert t.tolist() == x.tolist()
    if t.numel():
        t.fill_(3 if dtype != "bool" else 0)
        assert (x == 3).all() if dtype != "bool" else not x.any()
        assert (whole == 3).sum() < whole.numel() or x.numel() == whole.numel() or dtype == "bool"
    theirs = view(torch.tensor(values("int64")).to(getattr(torch, dtype)))
    y = mg.from_dlpack(theirs)
    assert str(y.dtype) == dtype and y.shape == tuple(theirs.shape)
    assert y.tolist() == theirs.tolist()
    if y.numel():
        y.fill_(0)
        assert not theirs.any()


@needs_torch
def test_memory_outlives_its_owner() -> None:
    t = torch.from_dlpack(mg.full((1000,), 2.0).to("bfloat16"))
    y = mg.from_dlpack(torch.full((1000,), 3.0, dtype=torch.bfloat16))
    garbage = [np.empty(1000, np.uint16) for _ in range(50)]
    assert t.sum() == 2000 and y.float().sum().item() == 3000 and len(garbage) == 50


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_capsules_and_keywords(dtype: str, version) -> None:
    x = mg.ones(3, dtype=dtype)
    name = "dltensor" if version is None else "dltensor_versioned"
    assert f'"{name}"' in repr(x.__dlpack__(max_version=version))
    assert x.__dlpack_device__() == (1, 0)
    assert f'"{name}"' in repr(x.__dlpack__(stream=None, max_version=version, dl_device=(1, 0), copy=False))
    raises(ValueError, "stream=1; there are no streams", lambda: x.__dlpack__(stream=1))
    raises(BufferError, "", lambda: x.__dlpack__(dl_device=(2, 0)))


def test_a_copy_is_a_copy() -> None:
    x = mg.zeros(3)
    a = np.arange(3.0)
    for copy in (mg.from_dlpack(x, copy=True), mg.from_dlpack(a, copy=True, device="cpu")):
        copy.fill_(1)
    np.from_dlpack(x, copy=True)[:] = 1
    assert x.tolist() == [0, 0, 0] and a.tolist() == [0, 1, 2]


def test_read_only_memory_stays_so() -> None:
    a = np.arange(3.0)
    a.flags.writeable = False
    x = mg.from_dlpack(a)
    raises(RuntimeError, "read-only", lambda: x.add_(1))
    assert not np.from_dlpack(mg.ones(1).expand(3)).flags.writeable
    raises(BufferError, "readonly", x.__dlpack__)


def test_own_tensors_keep_their_version() -> None:
    x = mg.tensor([1.0, 2.0])
    y = mg.from_dlpack(x)
    loss = (mg.tensor([1.0, 1.0], requires_grad=True) * x).sum()
    y.add_(1)
    raises(RuntimeError, "changed in place", lambda: loss.backward())


def test_refusals() -> None:
    w = mg.ones(2, requires_grad=True)
    for export in (w.__dlpack__, (w * 2).__dlpack__, lambda: mg.from_dlpack(w), lambda: np.from_dlpack(w)):
        raises(BufferError, r"requires grad would leave the graph; use \.detach\(\)", export)
    assert np.from_dlpack(w.detach()).tolist() == [1, 1]
    raises((BufferError, RuntimeError), "[Uu]nsupported dtype", lambda: np.from_dlpack(mg.ones(2, dtype="bfloat16")))
    raises(TypeError, "expects an object with __dlpack__, not list", lambda: mg.from_dlpack([1.0]))
    raises(TypeError, "unsupported dtype", lambda: mg.from_dlpack(np.ones(2, np.int16)))
    raises(ValueError, "negative strides", lambda: mg.from_dlpack(np.arange(3)[::-1]))
    for x in (np.ones(2), mg.ones(2)):
        raises(ValueError, "the memory is on cpu, not cuda", lambda x=x: mg.from_dlpack(x, device="cuda"))


class Old:
    """A producer of the old protocol, whose ``__dlpack__`` knows no keywords but stream."""

    def __init__(self, device: tuple[int, int]) -> None:
        self.device = device

    def __dlpack__(self, stream=None):
        return np.arange(4.0).__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_a_producer_of_the_old_protocol() -> None:
    assert mg.from_dlpack(Old((1, 0))).tolist() == [0, 1, 2, 3]
    raises(TypeError, "device type 10 of DLPack is neither the CPU", lambda: mg.from_dlpack(Old((10, 0))))
