"""The one exception of the data package."""


class DataError(ValueError):
    """A text, a token or a batch that cannot be had; the message is one line and says what would work."""
