"""The exceptions of the data package."""

from ..errors import LocatedError


class DataError(LocatedError):
    """A text, a token or a batch that cannot be had; the message says what would work."""


class NotTextError(DataError):
    """A file that is not UTF-8 text, such as a picture."""
