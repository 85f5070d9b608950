"""What a line of a file of prompts or texts may hold: strings, and chat messages. Knows values, no file."""

_SHOWN = 60  # characters of what is wrong


def string_of(value: object) -> str:
    """A string that can be sent. Raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{repr(value)[:_SHOWN]} is not a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair, which is no character") from None
    return value


def messages_of(value: object) -> tuple[tuple[str, str], ...]:
    """A chat as (role, content), out of a list of objects that have both. Raises ValueError for anything else."""
    keys = {"role", "content"}
    if not isinstance(value, list) or not all(isinstance(turn, dict) and keys <= turn.keys() for turn in value):
        raise ValueError('"messages" is a list of {"role", "content"}')
    return tuple((string_of(turn["role"]), string_of(turn["content"])) for turn in value)
