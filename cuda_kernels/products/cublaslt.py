"""Matrix products by NVIDIA's cuBLASLt, whose C interface is called by ctypes: an engine of ``choose.py``.

cuBLASLt thinks of columns: a matrix is rows, columns and the elements from one column to the next (the leading
dimension). What is y (M, N) with contiguous rows is to it a matrix of N rows and M columns, the transpose of y. So the
operands change places, y^T = b^T a^T, and nothing is copied: an operand with contiguous rows is taken as it is, one
with contiguous columns is transposed by the library.

    A = b, B = a, C = other, D = y:    D = epilogue(op(A) op(B) + beta C)

What the library has no fused kernel for is a pass of our own over the float32 product. An algorithm is chosen by the
library's heuristic, once for a shape, from those that add divided sums in a fixed order. A stream has one workspace for
all of its products, and so has a captured graph, which keeps it as long as it lives.

Source: NVIDIA, "cuBLAS library", the chapter on cuBLASLt, and ``cublasLt.h``.
"""

import ctypes
import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..platform import launch, libcuda, memory, recording
from ..platform.toolbox import SIMULATED, Array, contiguous, empty
from .epilogue import finish, finish4
from .record import ADD, BIAS, GELU, SLOPE, Problem, problem

WORKSPACE = 32 << 20  # bytes; NVIDIA's advice for compute capability 9.0
PLANS = 1024  # that are kept

# Of cublas_api.h, library_types.h and cublasLt.h.
SUCCESS, NOT_SUPPORTED = 0, 15
TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8  # cublasLtMatmulDescAttributes_t
AUX_POINTER, AUX_LD, AUX_BATCH_STRIDE = 11, 12, 13
BATCH_COUNT, STRIDED_BATCH_OFFSET = 5, 6  # cublasLtMatrixLayoutAttribute_t
MAX_WORKSPACE_BYTES, REDUCTION_SCHEME_MASK, MIN_ALIGNMENT = 1, 3, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t
REDUCTION_COMPUTE_TYPE = 2  # parts of a sum go to the workspace as float32, and a second kernel adds them in order
EPILOGUES = {0: 1, BIAS: 4, GELU: 32 | 128, GELU | BIAS: 32 | 128 | 4, SLOPE: 64 | 128}  # cublasLtEpilogue_t

_P, _I, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_P,),
    "cublasLtMatmulDescCreate": (_P, _I, _I),
    "cublasLtMatrixLayoutCreate": (_P, _I, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatmulPreferenceCreate": (_P,),
    **{f"cublasLt{kind}SetAttribute": (_P, _I, _P, _S) for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference")},
    **{f"cublasLt{kind}Destroy": (_P,) for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference")},
    "cublasLtMatmulAlgoGetHeuristic": (*[_P] * 7, _I, _P, _P),
    "cublasLtMatmul": (*[_P] * 14, _S, _P),
}


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLtError(RuntimeError):
    """cuBLASLt refused a call."""


# The library ----------------------------------------------------------------------------------------------------------


def library() -> ctypes.PyDLL:
    """The library, to compute with. Raises OSError where it is not found, and in the simulator."""
    if SIMULATED:
        raise OSError('cuBLASLt computes on GPUs, not in the simulator: minigrad.cuda.set_gemm("numba")')
    return find_library()


@functools.cache
def find_library() -> ctypes.PyDLL:
    """libcublasLt, where NVIDIA's own finder sees it: wheels, conda, CUDA_HOME, the system.

    Raises OSError with the command that installs it.
    """
    try:
        from cuda import pathfinder

        loaded = pathfinder.load_nvidia_dynamic_lib("cublasLt")
        found = ctypes.PyDLL(str(loaded.abs_path), handle=loaded._handle_uint)
    except (ImportError, RuntimeError, OSError) as error:
        wheel = "nvidia-cublas" if _newest() >= (13, 0) else "nvidia-cublas-cu12"
        remedy = f'pip install {wheel}, or choose our kernels by MINIGRAD_GEMM=numba or minigrad.cuda.set_gemm("numba")'
        raise OSError(f"cuBLASLt is not found ({error}): {remedy}") from error
    for name, arguments in FUNCTIONS.items():
        getattr(found, name).argtypes = arguments
    found.cublasLtGetStatusString.restype = ctypes.c_char_p
    return found


def _newest() -> tuple[int, int]:
    """The CUDA version that the driver supports."""
    try:
        return libcuda.driver().cuda
    except OSError:
        return 12, 0


def _call(name: str, *arguments: Any, accepted: int = SUCCESS) -> bool:
    """Whether a function succeeded. CublasLtError for another status than that or ``accepted``."""
    status = getattr(library(), name)(*arguments)
    if status not in (SUCCESS, accepted):
        words = library().cublasLtGetStatusString(status)
        raise CublasLtError(f"{name}: {(words or b'unknown error').decode()} (status {status})")
    return bool(status == SUCCESS)


@functools.cache
def _handle(device: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    with memory.on_device(device):
        _call("cublasLtCreate", ctypes.byref(handle))
    return handle


_workspaces: dict[tuple[int, int], memory.Memory] = {}  # of devices' streams
_workspaces_of_graphs: weakref.WeakKeyDictionary[Any, memory.Memory] = weakref.WeakKeyDictionary()


def workspace(device: int, stream: int) -> memory.Memory:
    """The memory in which products of a stream put parts of their sums. Streams run beside each other: each has one.

    During capture it is of the graph's pool: launches of other streams do not touch it.
    """
    graph = recording.current()
    if graph is not None:
        if graph not in _workspaces_of_graphs:
            _workspaces_of_graphs[graph] = memory.allocate(WORKSPACE, device)
        return _workspaces_of_graphs[graph]
    found = _workspaces.get((device, stream))
    return found or _workspaces.setdefault((device, stream), memory.allocate(WORKSPACE, device))


# Plans ----------------------------------------------------------------------------------------------------------------


class Matrix(NamedTuple):
    """As cuBLASLt sees it: rows and columns, elements from a column to the next and from a matrix to the next."""

    rows: int
    columns: int
    leading: int
    step: int = 0


class LibraryCall(NamedTuple):
    """All that a plan depends on. ``alignments`` (bytes) are those of A, B, C, D, the bias and what is before GELU."""

    device: int
    operand: str
    out: str
    compute: int
    sizes: tuple[int, int, int]
    matrices: int
    a: Matrix
    b: Matrix
    transposed: tuple[bool, bool]
    epilogue: int
    alignments: tuple[int, ...]


class Descriptor:
    """An object of the library, which lives as long as this one; it is what ctypes passes."""

    def __init__(self, kind: str, *arguments: Any) -> None:
        self.name: str = f"cublasLt{kind}"
        self._as_parameter_ = ctypes.c_void_p()
        _call(f"{self.name}Create", ctypes.byref(self._as_parameter_), *arguments)
        weakref.finalize(self, getattr(library(), f"{self.name}Destroy"), self._as_parameter_).atexit = False

    def set(self, attribute: int, value: Any) -> None:
        """Set an attribute to a number of ctypes."""
        _call(f"{self.name}SetAttribute", self, attribute, ctypes.byref(value), ctypes.sizeof(value))


class LibraryPlan:
    """Descriptors and the algorithm of a call. ``supported`` is False where the library has none."""

    def __init__(self, call: LibraryCall) -> None:
        M, N, _ = call.sizes
        self.description: Descriptor = Descriptor("MatmulDesc", call.compute, _scale(call.compute))
        for attribute, flag in zip((TRANSA, TRANSB), call.transposed, strict=True):
            self.description.set(attribute, ctypes.c_int32(flag))
        self.description.set(EPILOGUE, ctypes.c_uint32(EPILOGUES[call.epilogue]))
        if call.epilogue & (GELU | SLOPE):
            self.description.set(AUX_LD, ctypes.c_int64(N))
            self.description.set(AUX_BATCH_STRIDE, ctypes.c_int64(M * N))
        self.point(call, *call.alignments[4:])  # any address that is aligned alike: here none is read
        result = Matrix(N, M, N, M * N)
        operands = zip((call.operand, call.operand, call.out), (call.a, call.b, result), strict=True)
        self.layouts: list[Descriptor] = [_layout(word, matrix, call.matrices) for word, matrix in operands]
        self.result: Heuristic = Heuristic()
        self.supported: bool = self._choose(call)

    def point(self, call: LibraryCall, bias: int, before: int) -> None:
        """Tell where the arrays of the epilogue are."""
        if call.epilogue & BIAS:
            self.description.set(BIAS_POINTER, ctypes.c_void_p(bias))
        if call.epilogue & (GELU | SLOPE):
            self.description.set(AUX_POINTER, ctypes.c_void_p(before))

    def _choose(self, call: LibraryCall) -> bool:
        preference = Descriptor("MatmulPreference")
        preference.set(MAX_WORKSPACE_BYTES, ctypes.c_uint64(WORKSPACE))
        preference.set(REDUCTION_SCHEME_MASK, ctypes.c_uint32(REDUCTION_COMPUTE_TYPE))
        for attribute, nbytes in zip(MIN_ALIGNMENT, call.alignments):
            preference.set(attribute, ctypes.c_uint32(nbytes))
        found = ctypes.c_int()
        a, b, y = self.layouts
        described = _handle(call.device), self.description, a, b, y, y, preference
        results = 1, ctypes.byref(self.result), ctypes.byref(found)
        done = _call("cublasLtMatmulAlgoGetHeuristic", *described, *results, accepted=NOT_SUPPORTED)
        return done and found.value > 0 and self.result.state == SUCCESS


plan_of: Callable[[LibraryCall], LibraryPlan] = functools.lru_cache(maxsize=PLANS)(LibraryPlan)


def _scale(compute: int) -> int:
    """The dtype of alpha and beta."""
    return TYPES["float64" if compute == COMPUTE_64F else "float32"]


def _layout(word: str, matrix: Matrix, count: int) -> Descriptor:
    layout = Descriptor("MatrixLayout", TYPES[word], matrix.rows, matrix.columns, matrix.leading)
    if count > 1:
        layout.set(BATCH_COUNT, ctypes.c_int32(count))
        layout.set(STRIDED_BATCH_OFFSET, ctypes.c_int64(matrix.step))
    return layout


# Products -------------------------------------------------------------------------------------------------------------

_lock = threading.Lock()  # a plan's pointers and its launch belong together
SCALARS = {  # 0 and 1 on the host, which the library reads before it returns
    TYPES["float32"]: (ctypes.c_float(0), ctypes.c_float(1)),
    TYPES["float64"]: (ctypes.c_double(0), ctypes.c_double(1)),
}


def multiply(p: Problem, tf32: bool) -> None:
    """Compute a product of floats; ``tf32`` allows float32 operands to be rounded to TensorFloat-32."""
    a, b = _readable(p.a), _readable(p.b)
    if a is not p.a or b is not p.b:
        p = problem(p.y, a, b, *p[3:6])
    fused = _fused(p)
    if fused == p.epilogue and _run(p, fused, tf32):
        return
    # The product as float32 (float64), then the epilogue in a pass of its own.
    wide = p.y.dtype if p.y.dtype == np.float64 else np.dtype(np.float32)
    product = empty(p.y.shape, wide, p.y.device)
    if not _run(p._replace(y=product, bias=None, other=None), 0, tf32):
        remedy = 'MINIGRAD_GEMM=numba or minigrad.cuda.set_gemm("numba") chooses the kernels of this package'
        raise CublasLtError(f"cuBLASLt has no algorithm for a product of {p.a!r} and {p.b!r} to {wide.name}; {remedy}")
    if p.a.dtype.itemsize == 2:
        finish4(p, product, 1)
    else:
        finish(p, product, 1, p.epilogue)


def _fused(p: Problem) -> int:
    """The steps of the epilogue that the library does.

    Its bias and its GELU are of the operands' dtype; rows of what is before GELU begin at multiples of 16 bytes. Its
    GELU is approximate, which float32 would see.
    """
    steps = p.epilogue
    if p.a.dtype != p.y.dtype:
        steps &= ADD
    if p.other is not None and (p.y.itemsize != 2 or p.y.shape[-1] % 8 or p.other.pointer % 16):
        steps &= ~(GELU | SLOPE)
    return steps


def _run(p: Problem, epilogue: int, tf32: bool) -> bool:
    """Launch the product; False, and nothing has happened, if the library has no algorithm."""
    y, operand = p.y, p.a.dtype.name
    count, a_step, b_step = p.batch[0] if p.batch else (1, 0, 0)
    (a_transposed, a), (b_transposed, b) = (_matrix(x) for x in (p.a, p.b))
    adds = epilogue & ADD != 0
    bias, other = (0 if x is None else x.pointer for x in (p.bias, p.other))
    added, before = (other, 0) if adds else (y.pointer, other)
    addresses = p.b.pointer, p.a.pointer, added, y.pointer, bias, before
    compute = COMPUTE_32F_FAST_TF32 if tf32 and operand == "float32" else COMPUTE_32F
    call = LibraryCall(
        y.device, operand, y.dtype.name, COMPUTE_64F if operand == "float64" else compute, p.sizes, count,
        b._replace(step=b_step), a._replace(step=a_step), (b_transposed, a_transposed), epilogue & ~ADD,
        tuple(min(address & -address, 256) or 256 for address in addresses),  # powers of two
    )  # fmt: skip
    with memory.on_device(y.device):
        with _lock:
            plan = plan_of(call)
        if not plan.supported:
            return False
        stream = memory.current_stream()
        settings = call, plan, adds, addresses, workspace(y.device, stream).pointer, stream
        started = time.perf_counter_ns()
        if SIMULATED:
            recording.simulate(_start, *settings)
        else:
            _start(*settings)
        if launch.DEBUG >= 2:
            (M, N, K), moved = p.sizes, sum(x.nbytes for x in p[:5] if x is not None)
            name = f"cublaslt {operand} to {y.dtype.name}, {count} of ({M}, {K}) ({K}, {N})"
            launch.report(name, started, moved, 2 * M * N * K * count)
    return True


def _start(
    call: LibraryCall, plan: LibraryPlan, adds: bool, addresses: tuple[int, ...], room: int, stream: int
) -> None:
    """Launch the product of a plan, with the addresses of A, B, C, D, the bias and what is before GELU."""
    b, a, added, y, bias, before = addresses
    zero, one = SCALARS[_scale(call.compute)]
    b_layout, a_layout, y_layout = plan.layouts
    with _lock:
        plan.point(call, bias, before)
        _call(
            "cublasLtMatmul",
            _handle(call.device), plan.description, ctypes.byref(one), b, b_layout, a, a_layout,
            ctypes.byref(one if adds else zero), added, y_layout, y, y_layout,
            ctypes.byref(plan.result.algo), room, WORKSPACE, stream,
        )  # fmt: skip


def _matrix(x: Array) -> tuple[bool, Matrix]:
    """Whether the library must transpose the last two dimensions, and the matrix that it sees. ValueError: neither."""
    rows, columns = x.shape[-2:]
    row, column = x.steps[-2:]
    leading = row if rows > 1 else columns
    if (column == 1 or columns == 1) and leading >= columns:
        return False, Matrix(columns, rows, leading)
    leading = column if columns > 1 else rows
    if (row == 1 or rows == 1) and leading >= rows:
        return True, Matrix(rows, columns, leading)
    raise ValueError(f"{x!r} with steps {x.steps} has neither contiguous rows nor contiguous columns")


def _readable(x: Array) -> Array:
    """x, or a copy with contiguous rows."""
    try:
        _matrix(x)
    except ValueError:
        return contiguous(x)
    return x if min(x.steps) >= 0 else contiguous(x)
