"""The table "PyTorch to minigrad", docs/torch_names.md, made from the code of both.

    python docs/torch_table.py            is the page up to date?
    python docs/torch_table.py --write    make it anew
    python docs/torch_table.py --names    read the names and signatures of the PyTorch that is installed, and make it

docs/torch_names.txt holds PyTorch's side, so that only the last one needs PyTorch. A name is the same if it takes
PyTorch's parameters, with the same defaults, in the same order.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from idioms import read

from minigrad.hints import HINTS

HERE = Path(__file__).resolve().parent
NAMES, PAGE = HERE / "torch_names.txt", HERE / "torch_names.md"
START = "<!-- The tables are made by docs/torch_table.py. -->\n"
# The module or class here; PyTorch's is the same, with torch for minigrad.
SECTIONS = {
    "torch": "minigrad", "torch.Tensor": "minigrad.Tensor", "torch.nn": "minigrad.nn",
    "torch.nn.functional": "minigrad.nn.functional", "torch.nn.init": "minigrad.nn.init",
    "torch.nn.Module": "minigrad.nn.Module", "torch.optim": "minigrad.optim",
    "torch.optim.Optimizer": "minigrad.optim.Optimizer", "torch.optim.lr_scheduler": "minigrad.optim.lr_scheduler",
    "torch.utils.data": "minigrad.utils.data",
}  # fmt: skip
# Parameters that are not compared: about memory that the caller gives or how it lies, and old spellings.
APART = {"out", "layout", "memory_format", "pin_memory", "size_average", "reduce", "foreach", "async", "names"}
PLACES = {"dtype", "device"}  # whose defaults are other objects
# Not for users: parts of other parts, of compilers, quantisation and names of dimensions.
INNER = re.compile(
    r"_|.*_$|.*(cudnn|miopen|mkldnn|fbgemm|quantize|qscheme|_copy$|sym_|sparse_c|_backward$|names$|_symint|jagged|"
    r"batch_norm_|q_|per_channel|int_repr|wrapped|dequant|Storage$|fused_|Lazy|Quant|FakeQ|rnn_|_cell$|fork$|wait$)|"
    r"(get|set|is)_(autocast|anomaly|file|num_inter|rng|warn|def|float32|deter|vital|infer|view|neg|conj|vulkan)|"
    r"(Error|Exception|Future|Type|Stream|Event|Graph|Tag|Size|Block|Value|Node|Code|Match|Dict|List|Tuple|Option)"
)
NOTES = {
    "torch.Tensor.backward": "returns the gradients, which are not stored on tensors",
    "torch.optim.Optimizer.step": "takes the gradients that `backward` returned",
    "torch.optim.Optimizer.state_dict": "arrays and JSON values, see `minigrad.compat.torch`",
}


def resolve(path: str) -> Any:
    """The module or class of a dotted name."""
    try:
        return importlib.import_module(path)
    except ImportError:
        owner, _, name = path.rpartition(".")
        return getattr(resolve(owner), name)


def read_names() -> None:
    """Write docs/torch_names.txt from the PyTorch that is installed."""
    import torch

    lines = [f"# Names and parameters of PyTorch {torch.__version__.partition('+')[0]}; made by docs/torch_table.py."]
    for section in SECTIONS:
        owner = resolve(section)
        lines += ["", f"== {section}"]
        for name in sorted(getattr(owner, "__all__", None) or dir(owner)):
            value = getattr(owner, name, None)
            bare = name.removesuffix("_") if section == "torch.nn.init" else name
            if INNER.match(bare) or not callable(value) or not value.__doc__:
                continue
            origin = getattr(value, "__module__", None) or "torch"
            if section == "torch" and (
                isinstance(value, type)
                or not origin.startswith(("torch", "_"))
                or origin.startswith(("torch._C.", "torch.jit", "torch.utils", "torch.types"))
            ):
                continue
            if section == "torch.nn" and not (isinstance(value, type) and issubclass(value, torch.nn.Module)):
                continue
            if section in ("torch.nn.Module", "torch.optim.Optimizer") and name not in vars(owner):
                continue
            lines += dict.fromkeys(f"{name}({each})" for each in signatures(name, value))
    NAMES.write_text("\n".join(lines) + "\n", encoding="utf-8")


def signatures(name: str, value: Any) -> list[str]:
    """The parameters of a function or class, those of compiled ones from the beginning of the docstring."""
    try:
        parameters = [*inspect.signature(value).parameters.values()]
    except (ValueError, TypeError):
        parameters = []
    if parameters and [p.name for p in parameters] not in (["args", "kwargs"], ["self", "args", "kwargs"]):
        kept = [p.replace(annotation=p.empty, default=simple(p.default)) for p in parameters if p.name != "self"]
        return [str(inspect.Signature(kept))[1:-1]]
    found = re.findall(rf"^(?:\.\. \w+:: )?{name}\((.*?)\)(?: ?->.*)?$", inspect.getdoc(value) or "", re.MULTILINE)
    return [each for each in found if parsed(each) is not None] or ["..."]


def simple(default: Any) -> Any:
    """A default whose ``repr`` is Python."""
    return default if default is inspect.Parameter.empty or isinstance(default, (int, float, str, tuple)) else None


def parsed(text: str) -> ast.arguments | None:
    """The parameters of a signature."""
    text = re.sub(r"(\w+) ?= ?<[^>]*>|: ?[\w.\[\], ]+(?==|,|$)", r"\1", text)
    try:
        return ast.parse(f"lambda {text}: 0", mode="eval").body.args  # type: ignore[attr-defined]
    except SyntaxError:
        return None


def parameters(lines: list[str]) -> tuple[list[str], dict[str, str], bool] | None:
    """The names of all overloads in order, the defaults, and whether there is only one; None for unknown ones."""
    every = [parsed(line) for line in lines if line != "..."]
    if not every or None in every:
        return None
    names: dict[str, None] = {}
    defaults: dict[str, str] = {}
    for each in every:
        assert each is not None
        placed = [a.arg for a in (*each.posonlyargs, *each.args)]
        names.update(dict.fromkeys([*placed, *(a.arg for a in each.kwonlyargs)]))
        values = dict(zip(reversed(placed), reversed(each.defaults), strict=False))
        values |= {a.arg: d for a, d in zip(each.kwonlyargs, each.kw_defaults, strict=True) if d is not None}
        defaults.update({name: ast.unparse(value) for name, value in values.items()})
    return [*names], defaults, len(every) == 1


def difference(there: list[str], value: Any) -> str:
    """How a name of minigrad's differs from PyTorch's, "" if it does not."""
    if not callable(value):
        return "an attribute, not a method"
    try:
        own = [p for p in inspect.signature(value).parameters.values() if p.name != "self"]
    except (ValueError, TypeError):
        return ""
    known = parameters(there)
    if known is None:
        return ""
    names, defaults, single = known
    named = [p.name for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes_any = any(p.kind == p.VAR_KEYWORD for p in own)
    spread = any(p.kind == p.VAR_POSITIONAL for p in own)
    if names and names[0] in ("input", "self", "tensor") and names[0] not in named:
        names = names[1:]  # the first one is given by position
    lacking = [name for name in names if name not in named and name not in APART and name[0] != "_" and not takes_any]
    if spread and lacking:
        lacking = lacking[1:]  # the first are the sizes or tensors themselves
    parts = [f"no {', '.join(f'`{name}`' for name in lacking)}"] if lacking else []
    for p in own:
        default = defaults.get(p.name)
        if p.default is p.empty and default is not None and not lacking and p.kind == p.POSITIONAL_OR_KEYWORD:
            parts.append(f"`{p.name}` must be given")
        plain = isinstance(p.default, (bool, int, float, str, type(None)))
        if default is None or p.default is p.empty or p.name in PLACES | APART or not plain or default == "None":
            continue
        try:
            same = ast.literal_eval(default) == p.default
        except ValueError:
            continue
        if not same and p.default is not None:
            parts.append(f"`{p.name}` is {p.default!r} by default, there {default}")
    placed = [p.name for p in own if p.kind == p.POSITIONAL_OR_KEYWORD and p.name in names]
    if single and placed != [name for name in names if name in placed]:
        parts.append(f"in the order {', '.join(f'`{name}`' for name in placed)}")
    return "; ".join(parts)


def section_rows(section: str, lines: list[str]) -> list[str]:
    """The lines of the page about one module or class."""
    owner, path = resolve(SECTIONS[section]), SECTIONS[section]
    by_name: dict[str, list[str]] = {}
    for line in lines:
        name, _, rest = line.partition("(")
        by_name.setdefault(name, []).append(rest[:-1])
    same, differs, missing = [], [], {}
    kind = path.rpartition(".")[2] if isinstance(owner, type) else path
    for name, there in by_name.items():
        try:
            value = getattr(owner, name)
        except AttributeError as error:
            sentence = str(error).partition("\n")[0].partition("; ")[2]
            guessed = sentence.startswith("did you mean") and name.lower() != sentence[14:-2].lower()
            hint = HINTS.get(kind, {}).get(name) or ("" if guessed else sentence)
            missing.setdefault(hint, []).append(name)
            continue
        how = "; ".join(filter(None, (NOTES.get(f"{section}.{name}"), difference(there, value))))
        (differs if how else same).append(f"| `{name}` | {how} |" if how else f"`{name}`")
    title = f"## `{section}`"
    counts = f"{len(same)} names are the same, {len(differs)} differ, {sum(map(len, missing.values()))} are missing."
    table = [title, "", counts, "", "| PyTorch's | in minigrad |", "|---|---|"]
    table += [f"| {', '.join(same)} | same |"] if same else []
    table += differs
    for hint, names in sorted(missing.items(), key=lambda item: not item[0]):
        shown = ", ".join(f"`{name}`" for name in names)
        table.append(f"| {shown} | missing{f'; {hint}' if hint else ''} |".replace("|a|", r"\|a\|"))
    return [*table, ""]


def main() -> None:
    """Compare the page with the code, or make it."""
    if "--names" in sys.argv[1:]:
        read_names()
    page = PAGE.read_text(encoding="utf-8")
    rows = [row for section, lines in read(NAMES).items() for row in section_rows(section, lines)]
    new = page.partition(START)[0] + START + "\n" + "\n".join(rows)
    if new != page and len(sys.argv) > 1:
        PAGE.write_text(new, encoding="utf-8")
    elif new != page:
        sys.exit("docs/torch_names.md is out of date: run python docs/torch_table.py --write")


if __name__ == "__main__":
    main()
