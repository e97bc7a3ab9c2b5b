"""The short set, which ``pytest`` runs when nothing is chosen, has every operation, trainer and example."""

import inspect
import itertools
import re
from pathlib import Path

import house
import pytest
import short_set

import minigrad
import minigrad.distributed

TESTS = Path(__file__).parent
EXAMPLES = TESTS.parent / "examples"
ERRORS_OF_ELEMENTWISE = {"activation", "integers", "trigonometry"}  # tests/ops/test_elementwise.py has them
NEEDED = {"check_values", "check_gradients", "check_shapes", "check_layouts"}
WHOLLY_LONG = {"test_add_an_op.py", "test_flat_memory.py"}  # one test, which runs others in a copy of the tree


@pytest.fixture
def short(request: pytest.FixtureRequest) -> list[pytest.Function]:
    if short_set.by_name(request.config):
        pytest.skip("looks at the tests of all files: run pytest or pytest --all")
    found = short_set.short(request.config.stash[short_set.WHOLE])
    return [item for item in found if isinstance(item, pytest.Function)]


def test_each_file_that_has_tests_has_some_in_it(request: pytest.FixtureRequest, short: list[pytest.Function]) -> None:
    empty = {item.path.name for item in request.config.stash[short_set.WHOLE]} - {item.path.name for item in short}
    assert empty <= WHOLLY_LONG


def test_each_operation_has_every_check_and_an_error(short: list[pytest.Function]) -> None:
    """That its tests are ``every_check(OPS)`` is what tests/test_contracts.py holds."""
    for stem in house.OPERATIONS:
        here = [item for item in short if item.path == TESTS / f"ops/test_{stem}.py"]
        all_params = (item.callspec.params for item in here if item.originalname == "test_op")
        found = {(params["op"].name, params["check"].__name__) for params in all_params}
        assert found and found >= {*itertools.product({op for op, _ in found}, NEEDED)}, stem
        errors = any("raises(" in inspect.getsource(function) for function in {item.function for item in here})
        assert errors or stem in ERRORS_OF_ELEMENTWISE, stem


def test_each_public_function_is_in_a_file_of_tests() -> None:
    """Two files need PyTorch, so what is in the short set depends on whether it is installed."""
    text = "".join(house.text(path) for path in TESTS.rglob("test_*.py") if path.name not in WHOLLY_LONG)
    functions = [name for name in minigrad.__all__ if inspect.isroutine(getattr(minigrad, name))]
    assert len(functions) > 100
    assert [name for name in functions if not re.search(rf"\b{name}\b", text)] == []


def test_each_trainer_is_made(short: list[pytest.Function]) -> None:
    bodies = "".join(map(inspect.getsource, {item.function for item in short}))
    kinds = [name for name in minigrad.distributed.__all__ if name.endswith(("Trainer", "Server", "Builder", "Ddp"))]
    assert len(kinds) > 10
    assert [name for name in kinds if not re.search(rf"\b{name}\b", bodies)] == []


def test_each_example_runs(short: list[pytest.Function]) -> None:
    texts = [house.text(item.path) for item in short if item.path.name != "test_help.py"]
    scripts = [path.stem for path in EXAMPLES.glob("*.py") if '__name__ == "__main__"' in house.text(path)]
    assert len(scripts) > 8
    assert [name for name in scripts if not any(re.search(rf'"{name}(\.py)?"', text) for text in set(texts))] == []
