"""Instructions that the lanes of a warp must run together, where some of its lanes may not come: read from PTX.

``divergent(ptx)`` follows, for each register, which of its bits may differ from lane to lane: those of ``%tid.x`` are
the lowest five, a shift moves them, a mask takes some away. A branch on a condition without such bits is taken by the
whole warp. Between any other branch and the place where its two ways meet again (its immediate post-dominator) a
``.sync`` or ``.aligned`` instruction is undefined, or hangs. What is in doubt counts as different.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

ALL = (1 << 64) - 1
LANES = 31  # the bits of a thread's index that tell the lanes of a warp
TOGETHER = re.compile(r"\.(?:sync|aligned)\b")
STATEMENT = re.compile(r"(?:@!?(%\w+)\s+)?([a-z]\w*)([\w.:]*)\s*(.*)", re.DOTALL)
ENDS = ("bra", "ret", "exit")


class Statement(NamedTuple):
    """``@guard name.words operands``."""

    guard: str | None
    name: str
    words: str
    operands: list[str]


class BasicBlock(NamedTuple):
    """Statements of which only the last may be a branch, and the blocks that may follow; None is the end."""

    statements: list[Statement]
    after: list[int | None]


def divergent(ptx: str) -> list[str]:
    """The names of those instructions, in order; none if all is well."""
    blocks = _blocks(ptx)
    meets = _post_dominators(blocks)
    bits: dict[str, int] = {}
    apart: set[int] = set()  # blocks that only some lanes may run
    known = None
    while known != (bits, apart):
        known = dict(bits), set(apart)
        for i, block in enumerate(blocks):
            for statement in block.statements:
                if statement.name == "bra":
                    if bits.get(statement.guard or "", 0):
                        apart |= _until(blocks, i, meets[i])
                elif len(statement.operands) > 1:
                    found = ALL if i in apart else _bits(statement, bits)
                    for register in re.findall(r"%\w+", statement.operands[0]):
                        bits[register] = bits.get(register, 0) | found
    return [s.name + s.words for i in sorted(apart) for s in blocks[i].statements if TOGETHER.search(s.words)]


def _bits(statement: Statement, bits: dict[str, int]) -> int:
    """The bits of a result that may differ between lanes, from those of the operands."""
    name, words, (_, *sources) = statement.name, statement.words, statement.operands
    given = [_of_operand(source, bits) for source in sources]
    joined = 0
    for one in given:
        joined |= one
    constant = int(sources[-1]) if sources[-1].isdigit() else None
    if name == "shfl" and words.startswith(".sync.idx") and not given[1]:
        return 0  # all lanes get the value of the same
    if name in ("shfl", "atom", "call") or bits.get(statement.guard or "", 0):
        return ALL
    if not joined or name in ("mov", "not", "or", "xor") or (name == "cvt" and ".f" not in words):
        return joined
    if constant is not None:
        simple: dict[str, Callable[[], int]] = {
            "shl": lambda: joined << constant & ALL,
            "shr": lambda: joined >> constant,
            "and": lambda: joined & constant,
            "bfe": lambda: joined >> int(sources[1]) & ((1 << constant) - 1),
            "setp": lambda: 0 if joined <= LANES and _keeps_warps_whole(words, constant) else ALL,
        }
        if name in simple:
            return simple[name]()
    return -(joined & -joined) & ALL if name in ("add", "sub", "mul", "mad") else ALL


def _keeps_warps_whole(words: str, limit: int) -> bool:
    """Whether a comparison with a constant has one result for 32 neighbours, of which the first is a multiple of 32."""
    return limit % 32 == (0 if words.startswith((".lt", ".ge")) else 31 if words.startswith((".le", ".gt")) else -1)


def _of_operand(operand: str, bits: dict[str, int]) -> int:
    if re.search(r"%(?:tid|laneid|lanemask)|retval", operand):
        return LANES if operand == "%tid.x" else ALL
    found = 0
    for register in re.findall(r"%\w+", operand):
        found |= bits.get(register, 0)
    return ALL if found and operand.startswith("[") else found  # loaded from addresses that differ


def _blocks(ptx: str) -> list[BasicBlock]:
    """The blocks of the kernel, in order."""
    statements: list[list[Statement]] = [[]]
    starts: dict[str, int] = {}
    for label, statement in _statements(ptx):
        if label:
            statements.append([])
            starts[label] = len(statements) - 1
        elif statement:
            statements[-1].append(statement)
            if statement.name in ENDS:
                statements.append([])
    blocks = []
    for i, content in enumerate(statements):
        after: list[int | None] = [i + 1 if i + 1 < len(statements) else None]
        if content and content[-1].name in ENDS:
            last = content[-1]
            to = starts[last.operands[0]] if last.name == "bra" else None
            after = [to, *after] if last.guard else [to]
        blocks.append(BasicBlock(content, after))
    return blocks


def _statements(ptx: str) -> Iterator[tuple[str | None, Statement | None]]:
    """Labels, and statements, of the kernel."""
    text = re.sub(r"//[^\n]*", "", ptx)
    body = text[text.index("{", text.index(".entry")) :]
    for part in body.split(";"):
        part = part.strip().lstrip("{} \t\n")  # of scopes; a vector's are further behind
        while label := re.match(r"([$\w]+):[{\s]*", part):
            yield label[1], None
            part = part[label.end() :]
        found = STATEMENT.fullmatch(part)
        if found:
            operands = re.split(r",\s*(?![^{\[(]*[}\])])", found[4].strip()) if found[4] else []
            yield None, Statement(found[1], found[2], found[3], operands)


def _post_dominators(blocks: list[BasicBlock]) -> list[set[int | None]]:
    """For each block, those that every way from it to the end comes through, itself too."""
    found: list[set[int | None]] = [{None, *range(len(blocks))} for _ in blocks]
    changed = True
    while changed:
        changed = False
        for i in reversed(range(len(blocks))):
            ways: list[set[int | None]] = [{None} if j is None else found[j] for j in blocks[i].after]
            new = {i, *ways[0].intersection(*ways)}
            changed = changed or new != found[i]
            found[i] = new
    return found


def _until(blocks: list[BasicBlock], start: int, ends: set[int | None]) -> set[int]:
    """The blocks on the ways from the end of a block to the first that all of them come through."""
    found: set[int] = set()
    left = list(blocks[start].after)
    while left:
        i = left.pop()
        if i is not None and i not in found and (i == start or i not in ends):
            found.add(i)
            left += blocks[i].after
    return found
