"""Launching: what reaches the driver, what is refused, and what a line of MINIGRAD_DEBUG says."""

import ctypes
import struct
import sys
import time

import numpy as np
import pytest
from in_threads import outcomes
from refusals import raises

from minigrad import cuda_kernels
from minigrad.cuda_kernels.platform import array, launch, libcuda, memory
from minigrad.cuda_kernels.platform.language import cuda
from minigrad.cuda_kernels.platform.launch import Kernel, kernel
from minigrad.cuda_kernels.simulator import simulated_memory


@kernel("float32*", "float32*", "int64", "float32", threads=64, registers=32)
def scale(x, y, n, factor) -> None:
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i] * factor


def test_a_kernel_runs() -> None:
    x = array.from_host(np.arange(100, dtype=np.float32))
    y = array.empty(100, np.float32)
    scale.launch(2, x, y, 100, 0.5)
    np.testing.assert_array_equal(array.to_host(y), np.arange(100) / 2)
    scale.launch(0, x, y, 100, 3.0)  # an empty grid
    scale.launch((1, 1, 0), x, y, 100, 3.0)
    np.testing.assert_array_equal(array.to_host(y), np.arange(100) / 2)
    scale.launch(1, x[4:], y[50:], 8, 1.0, threads=8)  # views start where they start
    np.testing.assert_array_equal(array.to_host(y[50:58]), np.arange(4, 12))


def test_arguments_that_do_not_fit() -> None:
    x, y = array.zeros(4, np.float32), array.zeros(4, np.float64)
    signature = r"kernel test_launch.scale\(float32\*, float32\*, int64, float32\) was"
    other = np.zeros(4, np.float32)
    for words, arguments in (
        *[
            (signature, wrong)
            for wrong in [(x, y, 4, 1.0), (x, x, 4), (x, x, 4, 1.0, 2), (x, 4, 4, 1.0), (x, x, x, 1.0)]
        ],
        (r"was launched with \(float32\*, float32\*, 4.5, 1.0\)", (x, x, 4.5, 1.0)),
        (r"\(ndarray, float32\*, 4, 1.0\); a pointer takes a DeviceArray", (other, x, 4, 1.0)),
    ):
        raises(TypeError, words, lambda arguments=arguments: scale.launch(1, *arguments))
    started = r"is started with .launch\(grid, \*arguments\)"
    for words, start in (
        ("a grid or block of 1.5", lambda: scale.launch(1.5, x, x, 4, 1.0)),  # type: ignore[arg-type]
        (started, lambda: scale(x, x, 4, 1.0)),  # type: ignore[func-returns-value]
        (started, lambda: scale[1, 64](x, x, 4, 1.0)),  # type: ignore[func-returns-value]
    ):
        raises(TypeError, words, start)


@pytest.mark.skipif(not cuda_kernels.simulated(), reason="test_gpu.py tests what the driver refuses")
@pytest.mark.parametrize(("grid", "threads"), [((1, 65536), 8), ((1, 1, 65536), 8), (2**31, 8), (1, 65), (1, (8, 9))])
def test_the_simulator_refuses_what_a_gpu_refuses(grid, threads) -> None:
    x = array.zeros(4, np.float32)
    raises(simulated_memory.SimulationError, "a GPU refuses that", scale.launch, grid, x, x, 4, 1.0, threads=threads)


def test_a_signature_that_does_not_fit_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ValueError, match=r"'float\*' is no word of a kernel's signature; there are int32, .*bits64\*"):
        kernel("float*", threads=32, registers=8, name="words")(lambda x: None)
    with pytest.raises(ValueError, match=r"has 2 words for 1 parameters: \(float32\*, int64\)"):
        kernel("float32*", "int64", threads=32, registers=8, name="words")(lambda x: None)


def test_two_kernels_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"there are two kernels test_launch\.scale"):
        kernel("int64", threads=32, registers=8, name="scale")(lambda n: None)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch):
    """The calls of cuLaunchKernel, by a stand-in for the driver that reads the arguments as it would."""
    calls = []
    formats = {"scale": "QQqf"}

    def cu_launch_kernel(function: int, *rest) -> int:
        *sizes, stream, addresses, _ = rest
        values = [
            struct.unpack(f, ctypes.string_at(addresses[i], struct.calcsize(f)))[0]
            for i, f in enumerate(formats["scale"])
        ]
        calls.append((function, tuple(sizes), stream, values))
        return 0 if sizes[0] < 1000 else 1

    monkeypatch.setattr(launch, "SIMULATED", False)
    monkeypatch.setattr(launch, "_cu_launch_kernel", cu_launch_kernel)
    monkeypatch.setattr(Kernel, "_load", lambda self, device: 77 + device)
    monkeypatch.setattr(memory, "current_stream", lambda: 5)
    monkeypatch.setattr(libcuda, "describe", lambda status: f"CUDA_ERROR {status}")
    return calls


def test_what_reaches_the_driver(recorded) -> None:
    x = array.from_host(np.arange(8, dtype=np.float32))
    scale.launch((3, 2), x[2:], x, -(2**40), 0.25, threads=(16, 2))
    assert recorded == [(77, (3, 2, 1, 16, 2, 1, 0), 5, [x.pointer + 8, x.pointer, -(2**40), 0.25])]


def test_threads_do_not_mix_their_arguments(recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    x = array.zeros(4, np.float32)
    interval = sys.getswitchinterval()
    monkeypatch.setattr(memory, "current_stream", lambda: time.sleep(0) or 5)

    def work(number: int) -> None:
        for _ in range(300):
            scale.launch(number, x, x, number, 0.0)

    sys.setswitchinterval(1e-6)
    try:
        assert outcomes(range(1, 5), work) == dict.fromkeys(range(1, 5))
    finally:
        sys.setswitchinterval(interval)
    assert len(recorded) == 1200
    assert all(sizes[0] == values[2] for _, sizes, _, values in recorded)


def test_launches_wait_before_the_queue_is_full(recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never within the driver, which would keep Python's lock: for each stream by itself, at marks in it."""

    class Mark:
        def record(self) -> None:
            self.place = len(recorded)

        def synchronize(self) -> None:
            waits.append((self.place, len(recorded)))

    waits: list[tuple[int, int]] = []
    monkeypatch.setattr(launch.streams, "Event", Mark)
    monkeypatch.setattr(launch, "_queues", launch._Queues())
    x = array.zeros(4, np.float32)
    for _ in range(4 * launch.AHEAD):
        scale.launch(1, x, x, 4, 2.0)
    assert waits == [(n * launch.AHEAD - 1, (n + 1) * launch.AHEAD - 1) for n in (1, 2, 3)]
    for stream in (6, 7) * launch.AHEAD:
        monkeypatch.setattr(memory, "current_stream", lambda stream=stream: stream)
        scale.launch(1, x, x, 4, 2.0)
    assert len(waits) == 3


def test_an_error_of_the_driver_names_kernel_and_arguments(recorded) -> None:
    x = array.zeros((2, 4), np.float32)
    with pytest.raises(libcuda.CudaError, match=r"launching test_launch\.scale\(float32\[2, 4\], .*: CUDA_ERROR 1"):
        scale.launch(1000, x, x, 8, 1.0)


def test_an_array_of_another_device_is_refused() -> None:
    """The kernel would use an address that its device does not have, which ends the whole process' work on it."""
    x, y = array.zeros(4, np.float32, memory.device_count() - 1), array.zeros(4, np.float32, 0)
    with memory.on_device(0):
        scale.launch(1, y, y, 4, 1.0)
        if x.device:
            for arguments in ((x, y), (y, x)):
                raises(libcuda.CudaError, r"on cuda:0 with an array of cuda:1", scale.launch, 1, *arguments, 4, 1.0)


def test_the_first_launch_of_a_thread_binds_its_device(recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver knows no context of a thread before CUDA's runtime was asked for the device."""
    bound: list[int] = []
    monkeypatch.setattr(memory, "set_device", bound.append)
    known = launch._cu_launch_kernel
    monkeypatch.setattr(launch, "_cu_launch_kernel", lambda *a: known(*a) if bound else libcuda.INVALID_CONTEXT)
    x = array.zeros(4, np.float32)
    scale.launch(1, x, x, 4, 2.0)
    assert bound == [0] and recorded[0][3] == [x.pointer, x.pointer, 4, 2.0]


def test_work_of_a_launch() -> None:
    x, y = array.zeros(100, np.float32), array.zeros(50, np.float32)
    assert scale.work((x, y, 50, 1.0)) == (600, 0)

    @kernel("float32*", "int64", threads=32, registers=8, flops=lambda x, n: 2 * n, nbytes=lambda x, n: 4 * n)
    def stated(x, n) -> None: ...

    assert stated.work((x, 7)) == (28, 14)


def test_an_older_card_is_told_what_the_kernel_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernel("int64", threads=32, registers=8, capability=(8, 0))
    def modern(n) -> None: ...

    monkeypatch.setattr(memory, "capability", lambda device: (7, 5))
    raises(libcuda.CudaError, r"modern\(int64\) needs compute capability 8\.0, cuda:0 has 7\.5", modern._load, 0)


def test_a_debugging_line_compares_with_what_the_card_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    from minigrad.cuda_kernels.platform import limits

    monkeypatch.setattr(limits, "copy_bandwidth", lambda device: 4e9)
    monkeypatch.setattr(limits, "multiply_add_rate", lambda device, start: 1e12)

    @kernel("float32*", "int64", threads=32, registers=8, flops=lambda x, n: 2 * n)
    def product(x, n) -> None: ...

    x, y = array.zeros(1000, np.float32), array.zeros(500, np.float32)
    line = launch.described("scale", 3e-6, *scale.work((x, y, 500, 1.0)))
    assert line == "minigrad: scale 3.0 us, 2.0 GB/s, 50 % of this card's copy"
    line = launch.described("product", 1e-6, *product.work((x, 250_000)))
    assert line.endswith("1.0 us, 0.50 TFLOP/s, 50 % of this card's float32 rate, 4.0 GB/s")
    monkeypatch.setattr(limits, "RATE_TURNS", 2)
    z = array.empty(256, np.float32)
    launch.multiply_adds.launch(1, z, 2, 0.5)  # what is measured can run
    assert np.isfinite(array.to_host(z)).all()
    assert launch.multiply_adds.work((z, 2, 0.5))[1] == 0  # its own line does not measure by it


def test_a_factorys_constants_are_part_of_the_key_of_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from minigrad.cuda_kernels.platform import compiler

    monkeypatch.setattr(compiler, "_versions", tuple)  # the compiler need not be installed

    def make(factor: float):
        def scaled(x) -> None:
            x[0] = x[0] * factor

        return scaled

    first = kernel("float64*", threads=32, registers=8, name="factory")(make(2.0))
    before = compiler._digest(first, (8, 0))
    assert compiler._digest(first, (8, 0)) == before
    first.function = make(3.0)
    assert compiler._digest(first, (8, 0)) != before
