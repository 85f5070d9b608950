"""Foreign text in a message: quoted, without terminal escapes, and cut. Knows nothing of where it came from."""

_LONGEST = 80


def quoted(value: object) -> str:
    """The value as Python writes it, so that no control character reaches a terminal; cut where it is long."""
    if isinstance(value, str | list):
        value = value[: _LONGEST + 1]
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
