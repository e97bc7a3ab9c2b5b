"""The picture of a graph: every node and edge is in it, no boxes overlap, and edges run downwards."""

import re
import statistics
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest
from refusals import raises

import minigrad as mg
from minigrad import Tensor, nn
from minigrad.nn import functional as F

SVG = "{http://www.w3.org/2000/svg}"


def leaf(*shape: int) -> Tensor:
    return mg.ones(*shape, requires_grad=True)


def graph_of(tensor: Tensor) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """How often each kind of vertex, and each kind of edge, occurs below a tensor."""

    def kind(vertex: object) -> str:
        return type(vertex).__name__ if isinstance(vertex, mg.Function) else "leaf"

    vertices = [tensor if tensor.node is None else tensor.node]
    edges: Counter[tuple[str, str]] = Counter()
    for vertex in vertices:  # grows
        for edge in vertex.edges if isinstance(vertex, mg.Function) else ():
            if edge is not None:
                edges[kind(edge), kind(vertex)] += 1
                if not any(edge is v for v in vertices):
                    vertices.append(edge)
    return Counter(map(kind, vertices)), edges


def residual() -> Tensor:
    x, w = leaf(2, 4), leaf(4, 4)
    y = x
    for _ in range(4):
        y = y + (y @ w).relu() * x
    return (y * x).sum()


def classifier() -> Tensor:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    return F.cross_entropy(model(leaf(5, 4)), mg.tensor([0, 1, 2, 0, 1]))


def wide() -> Tensor:
    return mg.stack([leaf(2) * i for i in range(2, 9)]).sum()


GRAPHS = [residual, classifier, wide, lambda: leaf(3).exp().sum(), lambda: leaf(2)]


@pytest.mark.parametrize("make", GRAPHS)
def test_nodes_edges_and_layout(make) -> None:
    tensor = make()
    picture = ElementTree.fromstring(mg.draw(tensor))
    boxes, kinds = {}, {}
    for group in picture.iter(f"{SVG}g"):
        x, y, w, h = (float(group.find(f"{SVG}rect").attrib[key]) for key in ("x", "y", "width", "height"))
        boxes[group.attrib["id"]] = (x, y, x + w, y + h)
        kinds[group.attrib["id"]] = group.find(f"{SVG}text").text
    vertices, edges = graph_of(tensor)
    assert Counter(kinds.values()) == vertices
    paths = [path for path in picture.iter(f"{SVG}path") if path.attrib.get("class") == "edge"]
    drawn = Counter((kinds[path.attrib["data-from"]], kinds[path.attrib["data-to"]]) for path in paths)
    assert drawn == edges
    items = list(boxes.values())
    for i, (ax, ay, bx, by) in enumerate(items):
        for cx, cy, dx, dy in items[:i]:
            assert bx < cx or dx < ax or by < cy or dy < ay
    width, height = (float(picture.attrib[key]) for key in ("width", "height"))
    assert all(min(ax, ay) > 0 and bx < width and by < height for ax, ay, bx, by in items)
    for path in paths:
        points = [float(n) for n in re.findall(r"-?\d+\.\d", path.attrib["d"])]
        (ax, _, bx, bottom), (cx, top, dx, _) = boxes[path.attrib["data-from"]], boxes[path.attrib["data-to"]]
        assert points[1] == pytest.approx(bottom, abs=0.11) and points[-1] == pytest.approx(top, abs=0.11)
        assert ax <= points[0] <= bx and cx <= points[-2] <= dx
        assert points[1::2] == sorted(points[1::2])
        for x, y in zip(points[6::6], points[7::6], strict=True):  # bends keep clear of the boxes
            assert not any(left < x < right and upper < y < lower for left, upper, right, lower in items)


def texts(picture: str) -> list[str]:
    return [str(text.text) for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_labels() -> None:
    model = nn.Linear(4, 2)
    loss = F.mse_loss(model(mg.ones(3, 4)), mg.zeros(3, 2))
    shown = texts(mg.draw(loss, model))
    assert {"weight", "bias", "2×4 float32", "2 float32", "Linear", "3×2 float32", "scalar float32"} <= set(shown)
    assert "leaf" not in shown
    x = leaf(2)
    y = x * 2
    assert {"a < b & c", "y"} <= set(texts(mg.draw(y.sum(), {"a < b & c": x, "y": y})))
    assert "y" in texts(mg.draw(y.sum(), [("y", y)])) and "Mul" in texts(mg.draw(y.sum(), [("y", y)]))


def test_a_notebook_shows_it_and_the_same_graph_gives_the_same_picture() -> None:
    picture = mg.draw(residual())
    assert isinstance(picture, str) and picture._repr_svg_() == picture and picture.startswith("<svg ")
    assert mg.draw(residual()) == picture


def test_what_is_refused() -> None:
    without_graph = r"draw: a tensor of shape \(2,\) that does not require grad has no graph"
    raises(ValueError, without_graph, lambda: mg.draw(mg.ones(2)))
    x = leaf(2)
    for _ in range(10):
        x = x.exp()
    assert mg.draw(x, limit=11)
    raises(ValueError, "more than 10 boxes", lambda: mg.draw(x, limit=10))
    raises(TypeError, "draw expects a tensor, such as a loss, not float", lambda: mg.draw(1.5))


def test_a_chain_runs_straight_down_and_the_picture_is_compact() -> None:
    model = nn.Sequential(nn.Block(8, 2), nn.Block(8, 2))
    picture = ElementTree.fromstring(mg.draw(model(leaf(1, 3, 8)).sum(), model))
    middles, widths = [], []
    for group in picture.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        widths.append(float(rect.attrib["width"]))
        if group.attrib["class"] != "leaf":
            middles.append(float(rect.attrib["x"]) + widths[-1] / 2)
    assert len(middles) == 13 and max(middles) - min(middles) < 30  # pixels, of boxes about 120 wide
    assert statistics.median(abs(x - statistics.median(middles)) for x in middles) < 10
    assert float(picture.attrib["width"]) < 7 * max(widths)  # an operation, five leaves, and an edge that passes


def test_edges_of_a_tree_do_not_cross() -> None:
    x = [leaf(2) for _ in range(8)]
    tree = ((x[0] + x[1]) * (x[2] + x[3])).exp() + ((x[4] * x[5]).exp() + (x[6] - x[7]))
    picture = ElementTree.fromstring(mg.draw(tree.sum()))
    ends = []
    for path in picture.iter(f"{SVG}path"):
        if path.attrib.get("class") == "edge":
            n = [float(number) for number in re.findall(r"-?\d+\.\d", path.attrib["d"])]
            ends += [((n[i], n[i + 1]), (n[i + 6], n[i + 7])) for i in (0, *range(2, len(n) - 6, 6)) if i + 7 < len(n)]
    assert len(ends) >= 15
    for i, ((ax, ay), (bx, by)) in enumerate(ends):
        for (cx, cy), (dx, dy) in ends[:i]:
            if (ay, by) == (cy, dy):
                assert (ax - cx) * (bx - dx) >= 0


def test_save_repr_and_background(tmp_path: Path) -> None:
    picture = mg.draw(leaf(2).exp().sum())
    assert picture.save(tmp_path / "graph.svg").read_text(encoding="utf-8") == picture
    raises(ValueError, r"named \*\.svg, not 'graph.png'", lambda: picture.save(tmp_path / "graph.png"))
    shown = "<Drawing: graph of 3 operations and leaves; a notebook shows it, .save('graph.svg') keeps it>"
    assert repr(picture) == shown
    assert ElementTree.fromstring(picture).find(f"{SVG}rect").attrib["fill"] == "#ffffff"
