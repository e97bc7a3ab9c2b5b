"""NumPy's arrays begin with a cache line, so that no vector of 64 bytes lies in two.

glibc's blocks begin 16 bytes into a line. On arrays that the second-level cache holds, NumPy's loops then take up to
twice as long (``x + y`` of 131,072 float32 numbers with AVX-512: 35 us, and 17 us where they begin with a line). Here a
block is 64 bytes longer than what was asked for, and the word before the array says where it begins. As NumPy does,
huge pages are asked for where an array has 4 MiB or more.

The functions are in LLVM's language, for which machine code is there in 5 ms; Numba would take half a second.
"""

from pathlib import Path

import numpy as np
from llvmlite import binding as llvm

from . import numpy_allocator


def install() -> None:
    """Align what NumPy allocates in the calling thread from now on. For glibc."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    functions = llvm.parse_assembly(Path(__file__).with_suffix(".ll").read_text(encoding="utf-8"))
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, jit=True)
    engine = llvm.create_mcjit_compiler(functions, machine)
    engine.finalize_object()
    context = np.zeros(1, np.int64)  # which they do not read
    numpy_allocator.keep((engine, context))
    addresses = map(engine.get_function_address, ("new", "new_zeros", "resize", "delete"))
    allocator, record = numpy_allocator.handler("minigrad_aligned", context, addresses)
    numpy_allocator.keep(record)
    numpy_allocator.use(allocator)
