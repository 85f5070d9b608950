"""JsonFields: typed reading of a JSON object someone else wrote. Knows types and messages, not what the keys mean."""

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from trtkit.checkpoints.quoted import quoted
from trtkit.errors import CheckpointError

_LARGEST = 1 << 40


class JsonFields:
    """One JSON object, and where it came from; every access checks the type and names file and key when it is wrong.

    A key whose value is null counts as absent, as in Hugging Face configs. `default` is the value that the format
    itself defines for an absent key.
    """

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def has(self, key: str) -> bool:
        """Whether the key is there with a value."""
        return self.values.get(key) is not None

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._value(key, default)
        if type(value) is not int or not 0 < value < _LARGEST:
            self.bad(key, f"should be a positive integer, not {quoted(value)}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """An integer >= 0."""
        value = self._value(key, default)
        if type(value) is not int or not 0 <= value < _LARGEST:
            self.bad(key, f"should be an integer >= 0, not {quoted(value)}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number > 0."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite_positive(value):
            self.bad(key, f"should be a number > 0, not {quoted(value)}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.bad(key, f"should be true or false, not {quoted(value)}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            self.bad(key, f"should be a string, not {quoted(value)}")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids: one integer or a list of them; absent gives ()."""
        value = self.values.get(key)
        listed = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(item) is int and 0 <= item < _LARGEST for item in listed):
            self.bad(key, f"should be a token id or a list of them, not {quoted(value)}")
        return tuple(listed)

    def object(self, key: str) -> "JsonFields | None":
        """A nested object, or None when absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.bad(key, f"should be an object, not {quoted(value)}")
        return JsonFields(value, f"{self.where}:{key}")

    def items(self, key: str) -> list[Any]:
        """A list; absent gives []."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.bad(key, f"should be a list, not {quoted(value)}")
        return value

    def bad(self, key: str, what: str) -> NoReturn:
        """Raise the CheckpointError CKPT-CONFIG for `key`."""
        raise CheckpointError(
            f"{key} {what}",
            "compare with the config.json of the original checkpoint; it may be damaged or of an unknown kind",
            code="CKPT-CONFIG",
            where=self.where,
        )

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            self.bad(key, "is missing")
        return default


def read_json_fields(path: Path) -> JsonFields:
    """Read a JSON object from a file. Raises CheckpointError CKPT-CONFIG."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _file_error(path, "is missing") from None
    except OSError as error:
        raise _file_error(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _file_error(path, f"is not JSON ({type(error).__name__})") from None
    if not isinstance(document, dict):
        raise _file_error(path, "holds no JSON object")
    return JsonFields(document, str(path))


def _file_error(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        what, "give the folder of a Hugging Face checkpoint with its config.json", code="CKPT-CONFIG", where=str(path)
    )


def _is_finite_positive(value: float) -> bool:
    try:
        return math.isfinite(value) and value > 0
    except OverflowError:
        return False
