"""A table of mistakes, a row for each: what is raised, the words of its message, the call."""

import re

import pytest


def raises(error: type[BaseException], words: str, call, *arguments: object, **options: object):
    """``call(*arguments, **options)`` raises ``error``, and the pattern ``words`` is found in its message; returns it.

    A message ends with the user's line of code. That is left out: it is the row, which has the words in it.
    """
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    message = re.sub(r"\n  at .*", "", str(caught.value))
    assert re.search(words, message), f"{words!r} is not in {message!r}"
    return caught.value
