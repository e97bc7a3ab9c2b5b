"""The text of an elementwise kernel; ``pointwise.py`` says what it does, ``layout.py`` its arguments.

For two inputs and a thread of one element it is

    def run(z, x0, x1, v0, v1, modes, groups, columns, inner, sz, s0, s1, outer, ...):
        group = cuda.grid(1)
        if group < groups:
            ...                                     # the places pz, p0, p1 of the thread's first element
            if modes & 3 == 2: a0 = raw0(v0)        # a number
            else: a0 = x0[p0]
            ...
            z[pz] = store(rule(load0(a0), load1(a1)))
"""

from __future__ import annotations

from .layout import MIDDLE


def source(n: int, width: int, numbers: list[bool], marks: bool) -> list[str]:
    """The lines of the kernel ``run`` of ``n`` inputs (``numbers``: which may be one), ``width`` elements a thread.

    ``marks``: write only where the result is true.
    """
    arrays = ["z", *(str(j) for j in range(n))]
    inputs = [*(f"x{j}" for j in range(n)), *(f"v{j}" for j in range(n))]
    steps = [f"s{a}" for a in arrays]
    parameters = ["z", *inputs, "modes", "groups", "columns", "inner", *steps, "outer", *(f"t{a}" for a in arrays)]
    for k in range(MIDDLE):
        parameters += [f"n{k}", *(f"t{a}_{k}" for a in arrays)]
    lines = [
        f"def run({', '.join(parameters)}):",
        "    group = cuda.grid(1)",
        "    if group < groups:",
        "        column = np.uint32(group)",
        *(f"        p{a} = np.int64(0)" for a in arrays),
        "        if outer > 0:",
        "            row = np.uint32(np.uint32(group) // columns)",
        "            column = np.uint32(np.uint32(group) - row * columns)",
    ]
    for k in range(MIDDLE):
        lines += [
            f"            if outer > {k + 1}:",
            f"                above = np.uint32(row // n{k})",
            f"                place = np.int64(np.uint32(row - above * n{k}))",
            *(f"                p{a} += place * t{a}_{k}" for a in arrays),
            "                row = above",
        ]
    lines += [f"            p{a} += np.int64(row) * t{a}" for a in arrays]
    lines += [f"        first = np.int64(column) * {width}", *(f"        p{a} += first * s{a}" for a in arrays)]
    one = _one if width == 1 else _four
    return lines + one(n, numbers, marks)


def _one(n: int, numbers: list[bool], marks: bool) -> list[str]:
    lines = []
    for j in range(n):
        if numbers[j]:
            lines += [f"        a{j} = raw{j}(v{j}) if modes >> {2 * j} & 3 == 2 else x{j}[p{j}]"]
        else:
            lines += [f"        a{j} = x{j}[p{j}]"]
    value = f"rule({', '.join(f'load{j}(a{j})' for j in range(n))})"
    if marks:
        return [*lines, f"        if {value}:", "            z[pz] = one"]
    return [*lines, f"        z[pz] = store({value})"]


def _four(n: int, numbers: list[bool], marks: bool) -> list[str]:
    lines = ["        left = inner - first"]
    for k in (1, 2, 3):
        lines += [f"        k{k} = np.int64({k}) if left > {k} else np.int64(0)"]  # a place that exists
    for j in range(n):
        names = ", ".join(f"a{j}_{k}" for k in range(4))
        test = "if"
        if numbers[j]:
            lines += [
                f"        if modes >> {2 * j} & 3 == 2:",
                *(f"            a{j}_{k} = raw{j}(v{j})" for k in range(4)),
            ]
            test = "elif"
        lines += [
            f"        {test} modes >> {2 * j} & 3 == 1 and left > 3:",
            f"            {names} = read{j}(x{j}, p{j})",
            f"        elif modes >> {2 * j} & 3 == 3:",
            f"            a{j}_0 = x{j}[p{j}]",
            *(f"            a{j}_{k} = a{j}_0" for k in (1, 2, 3)),
            "        else:",
            f"            a{j}_0 = x{j}[p{j}]",
            *(f"            a{j}_{k} = x{j}[p{j} + k{k} * s{j}]" for k in (1, 2, 3)),
        ]
    values = [f"rule({', '.join(f'load{j}(a{j}_{k})' for j in range(n))})" for k in range(4)]
    if marks:
        for k in range(4):
            lines += [f"        if {values[k]}:", "            z[pz] = one"]
        return lines
    lines += [f"        r{k} = store({values[k]})" for k in range(4)]
    lines += [
        f"        if modes >> {2 * n} & 3 == 1 and left > 3:",
        "            write(z, pz, (r0, r1, r2, r3))",
        "        else:",
        "            z[pz] = r0",
    ]
    for k in (1, 2, 3):
        lines += [f"            if left > {k}:", f"                z[pz + {k} * sz] = r{k}"]
    return lines
