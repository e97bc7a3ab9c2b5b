"""The text of an elementwise kernel; ``pointwise.py`` says what it does, ``layout.py`` its arguments.

For two inputs and a thread of one element it is

    def run(z, x0, x1, v0, v1, modes, groups, columns, inner, sz, s0, s1, outer, ...):
        group = cuda.grid(1)
        if group < groups:
            ...                                     # the places pz, p0, p1 of the thread's first element
            if modes >> 0 & 3 == 2:                 # a number
                a0_0 = raw0(v0)
            else:
                a0_0 = x0[p0]
            ...
            r0 = store(rule(load0(a0_0), load1(a1_0)))
            z[pz] = r0
"""

from .layout import MIDDLE


def source(n: int, width: int, numbers: list[bool]) -> list[str]:
    """The lines of the kernel ``run`` of ``n`` inputs (``numbers``: which may be one), ``width`` elements a thread."""
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
    others = range(1, width)
    if width > 1:
        lines += ["        left = inner - first"]
        lines += [f"        k{k} = np.int64({k}) if left > {k} else np.int64(0)" for k in others]  # a place that exists
    for j in range(n):
        lines += _branches(_reading(j, width, numbers[j]))
    values = [f"rule({', '.join(f'load{j}(a{j}_{k})' for j in range(n))})" for k in range(width)]
    lines += [f"        r{k} = store({value})" for k, value in enumerate(values)]
    singly = ["z[pz] = r0", *(line for k in others for line in (f"if left > {k}:", f"    z[pz + {k} * sz] = r{k}"))]
    at_once = [(f"modes >> {2 * n} & 3 == 1 and left > 3", ["write(z, pz, (r0, r1, r2, r3))"])] if width > 1 else []
    return lines + _branches([*at_once, ("", singly)])


def _reading(j: int, width: int, number: bool) -> list[tuple[str, list[str]]]:
    """How a thread gets its elements of input j: conditions, and lines."""
    mode, names = f"modes >> {2 * j} & 3", [f"a{j}_{k}" for k in range(width)]
    first, others = f"{names[0]} = x{j}[p{j}]", list(enumerate(names))[1:]
    ways = [(f"{mode} == 2", [f"{name} = raw{j}(v{j})" for name in names])] if number else []
    if width > 1:
        ways.append((f"{mode} == 1 and left > 3", [f"{', '.join(names)} = read{j}(x{j}, p{j})"]))
        ways.append((f"{mode} == 3", [first, *(f"{name} = {names[0]}" for _, name in others)]))
    return [*ways, ("", [first, *(f"{name} = x{j}[p{j} + k{k} * s{j}]" for k, name in others)])]


def _branches(ways: list[tuple[str, list[str]]]) -> list[str]:
    """if, elif, else: of conditions and lines; the last condition is empty."""
    if len(ways) == 1:
        return [f"        {line}" for line in ways[0][1]]
    found = []
    for word, (condition, lines) in zip(["if", *["elif"] * (len(ways) - 2), "else"], ways, strict=True):
        found += [f"        {word} {condition}".rstrip() + ":", *(f"            {line}" for line in lines)]
    return found
