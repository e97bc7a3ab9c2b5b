"""Runs the suite of the Python array API standard on minigrad: ``python tests/run_array_api_suite.py CHECKOUT [...]``.

CHECKOUT is a checkout of data-apis/array-api-tests with its submodule; what follows are arguments for its pytest, such
as ``--max-examples 5``. Left out are the extensions linalg and fft, complex numbers, and the tests that a line of
``array_api_skips.txt`` names, in which ``*`` stands for anything. The suite wants pytest, pytest-json-report,
hypothesis and ndindex.
"""

import builtins
import fnmatch
import os
import sys
from pathlib import Path
from typing import Any

SKIPS = Path(__file__).with_name("array_api_skips.txt")
ABSENT = "int8,int16,uint16,uint32,uint64,complex64,complex128"


def is_absent(test: Any) -> bool:
    """Whether a test asks for complex numbers, or for the names of an extension."""
    values = getattr(test, "callspec", None) and test.callspec.params.values()
    return any(
        getattr(v, "is_complex", False) or getattr(v, "__name__", v) in ("linalg", "fft", "__complex__")
        for v in values or ()
    )


class LeftOut:
    """The plugin that deselects what minigrad does not have, and skips what is listed."""

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Called by pytest with all tests."""
        import pytest

        absent = [test for test in items if is_absent(test)]
        config.hook.pytest_deselected(items=absent)
        items[:] = [test for test in items if test not in absent]
        for line in SKIPS.read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                pattern = f"array_api_tests/{line}".replace("[", "[[]")
                found = [test for test in items if fnmatch.fnmatchcase(test.nodeid, pattern)]
                if not found:
                    raise pytest.UsageError(f"{SKIPS.name}: no test is {line}")
                for test in found:
                    test.add_marker(pytest.mark.skip(reason=f"{SKIPS.name}: {line}"))


def main(checkout: str, *arguments: str) -> int:
    """Runs the suite, and returns pytest's exit status."""
    os.environ |= {"ARRAY_API_TESTS_MODULE": "minigrad.array_api", "ARRAY_API_TESTS_SKIP_DTYPES": ABSENT}
    os.chdir(checkout)
    sys.path.insert(0, checkout)
    largest = builtins.max
    # While it is imported, the suite asks for the largest complex dtype, whether there is one or not.
    builtins.max = lambda *values, **options: largest(*values, **options) if values != ([],) else (None,)
    try:
        import array_api_tests.dtype_helpers  # noqa: F401
    finally:
        builtins.max = largest
    import pytest

    options = ["--disable-extension", "linalg", "fft", "--disable-deadline", "-p", "no:cacheprovider"]
    return pytest.main(["array_api_tests", *options, *arguments], plugins=[LeftOut()])


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]).resolve()), *sys.argv[2:]))
