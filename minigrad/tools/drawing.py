"""The graph of a tensor as SVG, in layers (Sugiyama, Tagawa, Toda 1981), without a drawing library."""

import contextlib
import html
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..autograd import Function, shape_and_dtype
from ..engine import reachable
from ..errors import bad_type, bad_value
from ..plans import unfused
from ..tensor import Tensor

if TYPE_CHECKING:
    from ..nn import Module

CHARACTER, LINE, PADDING = 7.3, 16.0, 9.0  # of 12-pixel monospace text, in pixels
GAP, LAYER_GAP, MARGIN = 18.0, 34.0, 12.0
WEIGHTS = {"leaf": 0.001, "operation": 1.0, "result": 1.0, "bend": 0.03}  # how much a box keeps its place


class Drawing(str):
    """SVG text that a notebook shows as the picture; ``save`` writes it to a file."""

    __slots__ = ()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture to a file, whose name ends in .svg; returns its path."""
        path = Path(path)
        if path.suffix != ".svg":
            raise bad_value(f"a drawing is SVG text, so its file is named *.svg, not {path.name!r}")
        path.write_text(self, encoding="utf-8")
        return path

    def __repr__(self) -> str:
        (title,) = re.findall("<title>(.*)</title>", self)
        return f"<Drawing: {title}; a notebook shows it, .save('graph.svg') keeps it>"

    def _repr_svg_(self) -> str:
        return str(self)


class _Box:
    """A vertex: an operation, a leaf, or (without lines of text) a bend of an edge that passes a layer."""

    __slots__ = ("height", "inputs", "kind", "layer", "lines", "name", "outputs", "width", "x", "y")

    def __init__(self, kind: str, lines: list[str], layer: int) -> None:
        self.kind, self.lines, self.layer, self.name = kind, lines, layer, ""
        self.width = max(map(len, lines)) * CHARACTER + 2 * PADDING if lines else 2.0
        self.height = len(lines) * LINE + 2 * PADDING if lines else 0.0
        self.inputs: list[_Box] = []  # in the layer above, in the order of the operation's inputs
        self.outputs: list[_Box] = []
        self.x = self.y = 0.0  # of the middle of the upper side


def draw(
    tensor: Tensor | Callable[[], Tensor],
    names: "Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | Module | None" = None,
    limit: int = 200,
    *,
    plain: bool = False,
) -> Drawing:
    """The graph below a tensor as SVG text: leaves that require grad above, ``tensor`` at the bottom.

    Each box gives shape and dtype. ``names`` gives names to tensors: a mapping, pairs as ``module.named_parameters()``
    gives, or a module. Inputs that do not require grad are not part of the graph. A notebook shows the result as a
    picture; ``.save("graph.svg")`` keeps it.

    ``plain``: the graph of what the modules say, in which no plan of ``minigrad.fast`` ran. As a recorded graph cannot
    change, ``tensor`` is then a function that computes it: ``draw(lambda: model.loss(x, y), model, plain=True)``.

    Raises ValueError for a tensor that does not require grad, and for a graph of more than ``limit`` boxes; TypeError
    for a tensor with ``plain``.
    """
    if callable(tensor):
        with unfused() if plain else contextlib.nullcontext():
            tensor = tensor()
    elif plain:
        raise bad_type("draw: plain=True needs a function that computes the tensor")
    if not isinstance(tensor, Tensor):
        raise bad_type(f"draw expects a tensor, such as a loss, not {type(tensor).__name__}")
    if not tensor.requires_grad:
        raise bad_value(f"draw: a tensor of shape {tensor.shape} that does not require grad has no graph")
    pairs: Any = {} if names is None else names.named_parameters() if hasattr(names, "named_parameters") else names
    named = {id(_vertex(t)): name for name, t in (pairs.items() if isinstance(pairs, Mapping) else pairs)}
    boxes = _boxes(tensor, named, limit)
    layers = _layers(boxes)
    _order(layers)
    _place(layers)
    return Drawing(_svg(layers, boxes))


def _vertex(tensor: Tensor) -> Any:
    return tensor if tensor.node is None else tensor.node


def _boxes(tensor: Tensor, named: dict[int, str], limit: int) -> list[_Box]:
    """A box for each node and leaf, each in the layer below its lowest input (leaves just above their first use)."""
    root = _vertex(tensor)
    nodes, leaves = reachable(root)
    if len(nodes) + sum(map(len, leaves.values())) > limit:
        raise bad_value(f"draw: the graph has more than {limit} boxes; draw a smaller one, or pass limit=")
    boxes: dict[Any, _Box] = {}
    for vertex in nodes:
        sources = [edge for edge in vertex.edges if edge is not None]
        layer = 1 + max((boxes[s].layer for s in sources if isinstance(s, Function)), default=0)
        boxes[vertex] = _Box("result" if vertex is root else "operation", _lines(vertex, named), layer)
        for source in sources:
            if not isinstance(source, Function):
                leaf = boxes.setdefault(source, _Box("leaf", _lines(source, named), layer - 1))
                leaf.layer = min(leaf.layer, layer - 1)
            boxes[vertex].inputs.append(boxes[source])
    if not boxes:
        boxes[root] = _Box("leaf", _lines(root, named), 0)
    for number, box in enumerate(boxes.values()):
        box.name = f"n{number}"
    return list(boxes.values())


def _lines(vertex: Any, named: dict[int, str]) -> list[str]:
    """The text of a box: name and operation, shape and dtype."""
    shape, dtype = shape_and_dtype(vertex)
    names = [*filter(None, [named.get(id(vertex))]), *([type(vertex).__name__] if isinstance(vertex, Function) else [])]
    return [*(names or ["leaf"]), f"{'×'.join(map(str, shape)) or 'scalar'} {dtype}"]


def _layers(boxes: list[_Box]) -> list[list[_Box]]:
    """The boxes by layer, with bends where an edge passes a layer, so that all edges join neighbours."""
    layers = [[box for box in boxes if box.layer == i] for i in range(1 + max(box.layer for box in boxes))]
    for box in boxes:
        for i, source in enumerate(box.inputs):
            above = source
            for layer in range(source.layer + 1, box.layer):
                bend = _Box("bend", [], layer)
                bend.inputs, bend.name = [above], source.name
                above.outputs.append(bend)
                layers[layer].append(bend)
                above = bend
            box.inputs[i] = above
            above.outputs.append(box)
    return layers


def _order(layers: list[list[_Box]]) -> None:
    """Sort each layer by the mean place of its neighbours, downwards and upwards in turn, so that fewer edges cross.

    The best of the orders that come up stays.
    """
    best, fewest = [list(layer) for layer in layers], _crossings(layers)
    for sweep in range(12):
        downwards = sweep % 2 == 0
        for fixed, layer in itertools.pairwise(layers if downwards else layers[::-1]):
            places = {id(box): i for i, box in enumerate(fixed)}
            means = {}
            for i, box in enumerate(layer):
                near = [places[id(b)] for b in (box.inputs if downwards else box.outputs)]
                means[id(box)] = sum(near) / len(near) if near else float(i)
            layer.sort(key=lambda box, means=means: means[id(box)])  # type: ignore[misc]
        crossings = _crossings(layers)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layers[:] = best


def _crossings(layers: list[list[_Box]]) -> int:
    """How many pairs of edges between neighbouring layers cross."""
    count = 0
    for above, below in itertools.pairwise(layers):
        place = {id(box): i for i, box in enumerate(above)}
        ends = [place[id(source)] for box in below for source in sorted(box.inputs, key=lambda b: place[id(b)])]
        count += sum(a > b for a, b in itertools.combinations(ends, 2))
    return count


def _place(layers: list[list[_Box]]) -> None:
    """Coordinates: boxes near the middle of their neighbours, in their order, at a distance from each other.

    Bends give way to operations and leaves to both, so that chains of operations run straight down.
    """
    y = MARGIN
    for layer in layers:
        height = max(box.height for box in layer)
        x = 0.0
        for box in layer:
            box.x, box.y = x + box.width / 2, y
            if box.kind == "bend":
                box.height = height
            x += box.width + GAP
        y += height + LAYER_GAP
    for sweep in range(16):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = []
            for box in layer:
                near = box.inputs if sweep % 2 == 0 else box.outputs
                heaviest = max((WEIGHTS[b.kind] for b in near), default=0.0)
                near = [b for b in near if WEIGHTS[b.kind] == heaviest]
                wanted.append(sum(b.x for b in near) / len(near) if near else box.x)
            _separate(layer, wanted)
    leftmost = min(box.x - box.width / 2 for layer in layers for box in layer)
    for layer in layers:
        for box in layer:
            box.x += MARGIN - leftmost


def _separate(layer: list[_Box], wanted: list[float]) -> None:
    """Put the boxes where they are wanted, or as near as the distances let them: by weighted least squares.

    Boxes that would be too close are pooled at their mean (isotonic regression; Barlow, Brunk 1972).
    """
    starts = [0.0, *itertools.accumulate((a.width + b.width) / 2 + GAP for a, b in itertools.pairwise(layer))]
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for box, start, x in zip(layer, starts, wanted, strict=True):
        mean, weight, members = x - start, WEIGHTS[box.kind], 1
        while pools and pools[-1][0] > mean:
            other, heavy, count = pools.pop()
            mean = (mean * weight + other * heavy) / (weight + heavy)
            weight, members = weight + heavy, members + count
        pools.append((mean, weight, members))
    means = [mean for mean, _, members in pools for _ in range(members)]
    for box, start, mean in zip(layer, starts, means, strict=True):
        box.x = start + mean


def _svg(layers: list[list[_Box]], boxes: list[_Box]) -> str:
    width = max(box.x + box.width / 2 for layer in layers for box in layer) + MARGIN
    height = max(box.y + box.height for box in boxes) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.1f} {height:.1f}" font-family="monospace" font-size="12" text-anchor="middle">',
        f"<title>graph of {len(boxes)} operations and leaves</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
        f'<rect width="{width:.1f}" height="{height:.1f}" fill="#ffffff"/>',  # also on a dark page
    ]
    parts += [_edge(box, i, source) for box in boxes for i, source in enumerate(box.inputs)]
    fills = {"leaf": "#e3eefb", "operation": "#ffffff", "result": "#fdeecb"}
    for box in boxes:
        parts.append(
            f'<g id="{box.name}" class="{box.kind}"><rect x="{box.x - box.width / 2:.1f}" y="{box.y:.1f}" '
            f'width="{box.width:.1f}" height="{box.height:.1f}" rx="{9 if box.kind == "leaf" else 2}" '
            f'fill="{fills[box.kind]}" stroke="#333"/>'
        )
        for i, line in enumerate(box.lines):
            y = box.y + PADDING + LINE * i + 12
            parts.append(f'<text x="{box.x:.1f}" y="{y:.1f}" fill="#111">{html.escape(line)}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _edge(box: _Box, i: int, above: _Box) -> str:
    """The curve from a box, through the bends, to input ``i`` of another; inputs enter side by side."""
    points = [(box.x - box.width / 2 + box.width * (i + 1) / (len(box.inputs) + 1), box.y)]
    while above.kind == "bend":
        points += [(above.x, above.y + above.height), (above.x, above.y)]
        (above,) = above.inputs
    points.append((above.x, above.y + above.height))
    points.reverse()
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x, y), (x2, y2) in itertools.pairwise(points):
        middle = (y + y2) / 2
        path += f"C{x:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
    drawn = f'd="{path}" fill="none" stroke="#555" marker-end="url(#arrow)"'
    return f'<path class="edge" data-from="{above.name}" data-to="{box.name}" {drawn}/>'
