"""A library with cuBLASLt's interface that computes with NumPy in the simulator's memory, and refuses what is wrong.

Its functions are C functions, made by ctypes from Python, so arguments are packed as for the real ones. Attributes are
checked for number and size (as ``cublasLt.h`` has them), matrices for leading dimensions, alignment and the memory in
which they lie, epilogues for the dtypes that the documentation lists.
"""

import ctypes

import ml_dtypes
import numpy as np

from minigrad.cuda_kernels.platform import memory
from minigrad.cuda_kernels.products import cublaslt
from minigrad.plain_kernels import gelu

SUCCESS, INVALID_VALUE, NOT_SUPPORTED = 0, 7, 15
DTYPES = {0: np.dtype("f4"), 1: np.dtype("f8"), 2: np.dtype("f2"), 14: np.dtype(ml_dtypes.bfloat16)}
SIZES = {  # bytes of the attributes
    "MatmulDesc": {0: 4, 1: 4, 2: 4, 3: 4, 4: 4, 7: 4, 8: 8, 10: 8, 11: 8, 12: 8, 13: 8, 26: 4},
    "MatrixLayout": {0: 4, 1: 4, 2: 8, 3: 8, 4: 8, 5: 4, 6: 8},
    "MatmulPreference": {0: 4, 1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4},
}
ALGORITHM = 0xC0FFEE


def tf32(x: np.ndarray) -> np.ndarray:
    """Rounded to 10 bits of mantissa."""
    return ((x.astype("f4").view("u4") + 0x1000) & 0xFFFFE000).view("f4")


class FakeCublasLt:
    """Functions of the library as attributes. ``calls`` has what each product was asked for."""

    def __init__(self) -> None:
        self.objects: dict[int, dict[int, int]] = {}
        self.calls = []
        self.alive = 0
        self.problems: list[str] = []
        for name, arguments in cublaslt.FUNCTIONS.items():
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self._function(name)))

    def cublasLtGetStatusString(self, status: int) -> bytes:
        return {7: b"an invalid value", 15: b"not supported"}.get(status, b"an error")

    def _function(self, name: str):
        short = name.removeprefix("cublasLt")
        if short == "MatmulAlgoGetHeuristic":
            return self._heuristic
        if short == "Matmul":
            return self._guarded
        if short == "Create":
            return lambda handle: self._store(handle, 0xCAFE)
        kind = short.removesuffix("SetAttribute").removesuffix("Create").removesuffix("Destroy")
        if short.endswith("SetAttribute"):
            return lambda handle, attribute, value, size: self._set(kind, handle, attribute, value, size)
        if short.endswith("Destroy"):
            return lambda handle: self._drop(handle)
        return lambda target, *values: self._create(kind, target, values)

    def _store(self, target: int, value: int) -> int:
        ctypes.c_void_p.from_address(target).value = value
        return SUCCESS

    def _create(self, kind: str, target: int, values: tuple[int, ...]) -> int:
        names = {"MatmulDesc": (0, 1), "MatrixLayout": (0, 2, 3, 4), "MatmulPreference": ()}[kind]
        handle = 0x1000 + len(self.objects)
        self.objects[handle] = dict(zip(names, values, strict=True))
        self.alive += 1
        return self._store(target, handle)

    def _drop(self, handle: int) -> int:
        self.objects[handle] = {}
        self.alive -= 1
        return SUCCESS

    def _set(self, kind: str, handle: int, attribute: int, value: int, size: int) -> int:
        if SIZES[kind].get(attribute) != size:
            self.problems.append(f"{kind} {attribute} of {size} bytes")
            return INVALID_VALUE
        self.objects[handle][attribute] = int.from_bytes(ctypes.string_at(value, size), "little", signed=size == 8)
        return SUCCESS

    def _heuristic(self, lt, desc, a, b, c, d, pref, asked, results, found) -> int:
        description, preference = self.objects[desc], self.objects[pref]
        assert lt == 0xCAFE and asked == 1
        assert preference[3] == 2 and preference[1] == cublaslt.WORKSPACE
        operand, out = (DTYPES[self.objects[x][0]] for x in (a, d))
        epilogue = description[7]
        halves = operand.itemsize == 2
        if (epilogue != 1 and operand != out) or (epilogue & 128 and not halves) or (epilogue != 1 and operand == "f8"):
            return NOT_SUPPORTED
        description["aligned"] = tuple(preference[i] for i in (5, 6, 7, 8))  # type: ignore[index, assignment]
        result = cublaslt.Heuristic.from_address(results)
        result.algo[0], result.state, result.workspace = ALGORITHM, SUCCESS, 1024
        ctypes.c_int.from_address(found).value = 1
        return SUCCESS

    def _guarded(self, *arguments: int) -> int:
        """An exception in a C function would be lost: it is kept."""
        try:
            return self._matmul(*arguments)
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error}")
            return INVALID_VALUE

    def _matmul(
        self, lt: int, desc: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int, beta: int, c: int,
        c_layout: int, d: int, d_layout: int, algo: int, workspace: int, nbytes: int, stream: int | None,
    ) -> int:  # fmt: skip
        description = self.objects[desc]
        real = {0: ctypes.c_float, 1: ctypes.c_double}[description[1]]
        assert real.from_address(alpha).value == 1
        assert ctypes.c_uint64.from_address(algo).value == ALGORITHM
        assert nbytes == cublaslt.WORKSPACE and memory.simulated_bytes(workspace).nbytes == nbytes
        aligned = description["aligned"]  # type: ignore[index]
        for address, alignment in zip((b, a, c, d), (aligned[1], aligned[0], *aligned[2:]), strict=True):
            assert address % alignment == 0
        left, right = self.matrix(a, a_layout), self.matrix(b, b_layout)
        left = left.swapaxes(-1, -2) if description.get(3) else left
        right = right.swapaxes(-1, -2) if description.get(4) else right
        if description[0] == 77:
            left, right = tf32(left), tf32(right)
        s = np.matmul(left.astype("f8"), right.astype("f8"))
        target = self.matrix(d, d_layout)
        assert s.shape == target.shape
        factor = real.from_address(beta).value
        if factor:
            s = s + factor * self.matrix(c, c_layout).astype("f8")
        epilogue = description[7]
        if epilogue & 4:
            bias = self.elements(description[8], target.dtype, (target.shape[-2],), (1,))
            s = s + bias.astype("f8")[:, None]
        if epilogue & 128:
            address, leading, step = description[11], description[12], description.get(13, 0)
            assert leading % 8 == 0 and address % 16 == 0 and leading >= target.shape[-2]
            steps = (step, 1, leading)[3 - target.ndim :]
            before = self.elements(address, target.dtype, target.shape, steps)
            if epilogue & 32:
                before[...] = s
                s = gelu.forward(s, "tanh")
            else:
                s = gelu.backward(s, before.astype("f8"), "tanh")
        target[...] = s
        self.calls.append({"shape": s.shape, "epilogue": epilogue, "beta": factor, "compute": description[0]})
        return SUCCESS

    def matrix(self, address: int, layout: int) -> np.ndarray:
        """The matrix, or the batch of them, that a layout describes."""
        attributes = self.objects[layout]
        rows, columns, leading = attributes[2], attributes[3], attributes[4]
        assert leading >= rows
        count = attributes.get(5, 1)
        shape, steps = ((count, rows, columns), (attributes.get(6, 0), 1, leading)) if count > 1 else (None, None)
        return self.elements(address, DTYPES[attributes[0]], shape or (rows, columns), steps or (1, leading))

    @staticmethod
    def elements(address: int, dtype: np.dtype, shape: tuple[int, ...], steps: tuple[int, ...]) -> np.ndarray:
        """An array over the simulator's memory, which it must not leave."""
        raw = memory.simulated_bytes(address)
        first = address - raw.ctypes.data
        reach = sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) + 1
        assert first % dtype.itemsize == 0 and first + reach * dtype.itemsize <= raw.nbytes
        strides = [step * dtype.itemsize for step in steps]
        return np.ndarray(shape, dtype, raw, first, strides)
