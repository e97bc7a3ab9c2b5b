"""Every public name says its type, so that type checkers and editors need not guess: annotations in all the sources.

This is what ``.ci/verifytypes`` asks, as far as it shows without pyright.
"""

import ast

import house

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def statements(body: list[ast.stmt]):
    """Those of a module or class, also under ``if``, ``try`` and ``with``."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            for inner in (getattr(statement, "body", []), getattr(statement, "orelse", [])):
                yield from statements(inner)


def attribute(target: ast.AST) -> str | None:
    """``name`` of ``self.name``."""
    of_self = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    return target.attr if of_self else None


def declared(cls: ast.ClassDef) -> set[str]:
    """The attributes that the class annotates, in its body or where a method sets them."""
    targets = [node.target for node in ast.walk(cls) if isinstance(node, ast.AnnAssign)]
    return {getattr(target, "id", None) or attribute(target) or "" for target in targets}


def setters(trees) -> set[str]:
    """The names of properties that may be set, and of class variables: those of a base class have their type there."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    stated = [n.target for n in nodes if isinstance(n, ast.AnnAssign) and "ClassVar" in ast.unparse(n.annotation)]
    named = [n for n in nodes if isinstance(n, Function) and f"{n.name}.setter" in map(ast.unparse, n.decorator_list)]
    return {*map(ast.unparse, stated), *(function.name for function in named)}


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    a = function.args
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]


def is_cuda_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether ``@kernel("float32*", ...)`` makes it a Kernel, which is its type; the words type its parameters."""
    made_by = [decorator.func for decorator in function.decorator_list if isinstance(decorator, ast.Call)]
    return any(getattr(maker, "attr", getattr(maker, "id", "")) == "kernel" for maker in made_by)


def untyped_values(body: list[ast.stmt], owner: str, known: set[str]):
    """Variables without an annotation. Constants in capitals, type aliases, literals and second names need none."""
    stated = {ast.unparse(statement.target) for statement in statements(body) if isinstance(statement, ast.AnnAssign)}
    for statement in statements(body):
        if isinstance(statement, ast.Assign) and not isinstance(statement.value, (ast.Constant, ast.Name)):
            for target in statement.targets:
                for name in ast.walk(target):
                    if not isinstance(name, ast.Name) or name.id in stated or (owner and name.id in known):
                        continue
                    if isinstance(name.ctx, ast.Store) and not name.id.startswith("_") and name.id[0].islower():
                        yield f"{owner}{name.id}"


def untyped_attributes(cls: ast.ClassDef, owner: str, known: set[str]):
    """Attributes that a method sets. One that only ever is a typed parameter has its type."""
    known = known | declared(cls)
    for method in cls.body:
        if isinstance(method, Function):
            typed = {parameter.arg for parameter in parameters(method) if parameter.annotation}
            for node in ast.walk(method):
                if not isinstance(node, ast.Assign):
                    continue
                plain = isinstance(node.value, ast.Name) and node.value.id in typed
                for target in node.targets:
                    for part in ast.walk(target):
                        name = attribute(part) if isinstance(getattr(part, "ctx", None), ast.Store) else None
                        if name is None or name.startswith("_") or name in known or (plain and part is target):
                            continue
                        yield f"{owner}{name}"


def untyped(tree: ast.Module, known: set[str]) -> list[str]:
    """The public names of a module that lack a type."""
    found = []

    def visit(body: list[ast.stmt], owner: str) -> None:
        found.extend(untyped_values(body, owner, known))
        for statement in statements(body):
            if isinstance(statement, ast.ClassDef) and public(statement.name):
                visit(statement.body, f"{owner}{statement.name}.")
                found.extend(untyped_attributes(statement, f"{owner}{statement.name}.", known))
            elif isinstance(statement, Function) and public(statement.name) and not is_cuda_kernel(statement):
                bare = [p.arg for p in parameters(statement) if p.annotation is None and p.arg not in ("self", "cls")]
                found.extend(f"{owner}{statement.name}({name})" for name in bare)
                if statement.returns is None:
                    found.append(f"{owner}{statement.name} ->")

    visit(tree.body, "")
    return found


def test_public_names_have_types():
    chapters = house.ROOT / "minigrad/learn/chapters"  # a learner's files: mypy infers what their classes hold
    files = [path for path in house.files(*house.SOURCES, "examples") if chapters not in path.parents]
    trees = {path: house.parse(house.text(path)) for path in files}
    assert len(trees) > 100
    known = setters(trees.values())
    missing = [f"{path}: {name}" for path, tree in trees.items() for name in untyped(tree, known)]
    assert not missing, "\n".join(missing)


def test_an_injected_untyped_name_is_found():
    for source, expected in [
        ("def f(x): return x", ["f(x)", "f ->"]),
        ("def f(x: int, *more, y=1, **rest) -> int: ...", ["f(y)", "f(more)", "f(rest)"]),
        ("@kernel\ndef f(x): ...", ["f(x)", "f ->"]),
        ("equal = np.equal", ["equal"]),
        ("a, b = f()", ["a", "b"]),
        ("class A:\n    def f(self): ...", ["A.f ->"]),
        ("class A:\n    def __init__(self): ...", ["A.__init__ ->"]),
        ("class A:\n    names = ('x',)", ["A.names"]),
        ("class A:\n    x: ClassVar[int]\nclass B(A):\n    x, y = f()", ["B.y"]),
        ("class A:\n    def f(self) -> None:\n        self.x = 1", ["A.x"]),
        ("class A:\n    def f(self, y: int) -> None:\n        self.x, self.y = y, 1", ["A.x", "A.y"]),
        ("class A:\n    x: int\nclass B(A):\n    def f(self) -> None:\n        self.x = 1", ["B.x"]),
    ]:
        tree = ast.parse(source)
        assert sorted(untyped(tree, setters([tree]))) == sorted(expected)
