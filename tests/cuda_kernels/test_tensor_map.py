"""Tensor maps on their way: what the driver is asked to encode, and how the bytes reach a kernel."""

import ctypes

import numpy as np
import pytest
from refusals import raises

from minigrad.cuda_kernels.platform import array, compiler, launch, libcuda, memory, tensor_map
from minigrad.cuda_kernels.platform.launch import Kernel, kernel
from minigrad.cuda_kernels.platform.tensor_map import TensorMap

MAP = TensorMap(4096, "bfloat16", (72, 10, 3), (144, 1440), (64, 128, 1), 0)


@kernel("tensor_map", "tensor_map", "float32*", "int32", threads=32, registers=32, capability=(9, 0), only=True)
def reads(a, b, y, n) -> None: ...


def read(kind, pointer, count: int) -> list[int]:
    return list((kind * count).from_address(ctypes.addressof(pointer)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch):
    """The calls of cuTensorMapEncodeTiled, by a stand-in that reads the arguments as the driver does."""
    calls = []
    current: list[int] = []

    def call(name: str, target, kind, rank, address, *rest) -> None:
        sizes, steps, box, element_steps, interleave, swizzle, fetch, fill = rest
        assert name == "cuTensorMapEncodeTiled" and target.value % 64 == 0
        assert current[-1:] == [MAP.device]  # a new thread has no context
        ctypes.memset(target.value, 0x11 * (len(calls) + 1), 128)
        calls.append(
            {
                "dtype": kind.value,
                "address": address.value,
                "sizes": read(ctypes.c_uint64, sizes, rank.value),
                "steps": read(ctypes.c_uint64, steps, rank.value - 1),
                "box": read(ctypes.c_uint32, box, rank.value),
                "element steps": read(ctypes.c_uint32, element_steps, rank.value),
                "modes": [x.value for x in (interleave, swizzle, fetch, fill)],
            }
        )

    monkeypatch.setattr(libcuda, "call", call)
    monkeypatch.setattr(memory, "set_device", current.append)
    tensor_map._encoded.cache_clear()
    yield calls
    tensor_map._encoded.cache_clear()


def test_what_the_driver_is_asked(asked) -> None:
    """Numbers of cuda.h: bfloat16 9, not interleaved 0, 128-byte swizzle 3, 256 bytes for L2 3, zeros outside 0."""
    assert MAP.encoded() == b"\x11" * 128
    place = {"address": 4096, "sizes": [72, 10, 3], "steps": [144, 1440]}
    assert asked == [{"dtype": 9, **place, "box": [64, 128, 1], "element steps": [1, 1, 1], "modes": [0, 3, 3, 0]}]
    assert TensorMap(*MAP).encoded() == b"\x11" * 128 and len(asked) == 1  # kept
    assert MAP._replace(dtype="float16").encoded() == b"\x22" * 128
    assert asked[1]["dtype"] == 6


def test_a_launch_passes_the_bytes(asked, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def cu_launch_kernel(*settings) -> int:
        places = settings[-2]
        assert places[0] % 64 == 0 and places[1] == places[0] + 128
        found.extend(ctypes.string_at(places[i], 128) for i in range(2))
        found.append(ctypes.c_uint64.from_address(places[2]).value)
        found.append(ctypes.c_int32.from_address(places[3]).value)
        return 0

    monkeypatch.setattr(launch, "SIMULATED", False)
    monkeypatch.setattr(launch, "_cu_launch_kernel", cu_launch_kernel)
    monkeypatch.setattr(Kernel, "_load", lambda self, device: 77)
    monkeypatch.setattr(memory, "current_stream", lambda: 5)
    y = array.zeros(4, np.float32)
    reads.launch(1, MAP, MAP._replace(pointer=8192), y, -7)
    assert found == [b"\x11" * 128, b"\x22" * 128, y.pointer, -7]
    for arguments in ((MAP, y, y, 1), (MAP, MAP._replace(device=1), y, 1), (MAP, 4096, y, 1), (MAP, MAP, MAP, 1)):
        with pytest.raises(TypeError, match=r"kernel test_tensor_map\.reads\(tensor_map, .* was launched with"):
            reads.launch(1, *arguments)


def test_maps_come_first() -> None:
    with pytest.raises(
        ValueError, match="the words tensor_map come first in a kernel's signature; got int64, tensor_map"
    ):
        kernel("int64", "tensor_map", threads=32, registers=8, name="late")(lambda n, a: None)


def test_instructions_of_one_capability_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability in ((8, 0), (10, 0)):
        monkeypatch.setattr(memory, "capability", lambda _, capability=capability: capability)
        raises(libcuda.CudaError, r"needs compute capability 9\.0 exactly, cuda:0 has", reads._load, 0)


TEXT = """
.visible .entry k(
\t.param .u64 k_param_0,
\t.param .u64 k_param_10
)
\tld.param.u64 \t%rd1, [k_param_0];
\tld.param.u64 \t%rd2, [k_param_10];
"""


def test_a_parameter_by_value_in_the_text() -> None:
    found = compiler._by_value(TEXT, "k_param_0")
    assert ".param .align 64 .b8 k_param_0[128]," in found
    assert "mov.b64 \t%rd1, k_param_0;\n\tcvta.param.u64 \t%rd1, %rd1;" in found
    assert found.count("k_param_10") == 2 and "ld.param.u64 \t%rd2, [k_param_10];" in found
    for broken in (
        TEXT.replace("ld.param.u64 \t%rd1", "ld.param.v2.u64 \t{%rd1, %rd3}"),
        TEXT.replace("[k_param_0]", "[k_param_0+8]"),
        TEXT.replace(".param .u64 k_param_0", ".param .b64 k_param_0"),
    ):
        with pytest.raises(RuntimeError, match="k_param_0 is not declared once and loaded as a whole"):
            compiler._by_value(broken, "k_param_0")
