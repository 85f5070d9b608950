"""The texts calibration runs on: those trtkit ships and users' files. Knows text, no tokenizer and no model."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from trtkit.errors import InputError
from trtkit.prompts.aiperf_inputs import rows_of_inputs
from trtkit.prompts.fields import messages_of, string_of

_FORMS = (
    'a .jsonl file with "text", "messages" (role and content, both strings) or "token_ids" on each line, '
    "the inputs.json of an aiperf run, or a text file with empty lines between the texts"
)
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n")
_DASHES = re.compile(r"^---[^\S\n]*$", re.MULTILINE)


@dataclass(frozen=True)
class CalibrationText:
    """One text: plain, a chat of (role, content), or token ids of the checkpoint's tokenizer."""

    name: str
    text: str | None = None
    messages: tuple[tuple[str, str], ...] = ()
    token_ids: tuple[int, ...] | None = None


def shipped_texts() -> list[CalibrationText]:
    """What trtkit ships: prose old and new, chats, code, tables, several languages; own words or public domain."""
    folder = resources.files("trtkit.calibration").joinpath("texts")
    texts: list[CalibrationText] = []
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith((".txt", ".jsonl")):
            texts += _parse(file.read_text(encoding="utf-8"), Path(file.name))
    return texts


def read_texts(path: Path) -> list[CalibrationText]:
    """Read a user's file. Raises InputError CALIB-TEXT for a line that is no text, CALIB-EMPTY without any."""
    try:
        content = path.read_text(encoding="utf-8-sig")  # Windows puts a byte order mark first
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", f"give {_FORMS}", code="CALIB-TEXT", where=str(path)) from None
    texts = _parse(content, path)
    if not texts:
        raise InputError("holds no text", f"give {_FORMS}", code="CALIB-EMPTY", where=str(path))
    return texts


def _parse(content: str, path: Path) -> list[CalibrationText]:
    return _PARSERS.get(path.suffix.lower(), _paragraphs)(content, path)


def _paragraphs(content: str, path: Path) -> list[CalibrationText]:
    """Texts are separated by lines of three dashes where there are any, else by empty lines."""
    separator = _DASHES if _DASHES.search(content) else _EMPTY_LINE
    pieces = [piece.strip("\n") for piece in separator.split(content)]
    kept = [piece for piece in pieces if piece.strip()]
    return [CalibrationText(f"{path.stem}-{number}", piece) for number, piece in enumerate(kept, 1)]


def _jsonl(content: str, path: Path) -> list[CalibrationText]:
    # Not splitlines(): JSON strings may hold U+2028, which is a line break there and nowhere else.
    rows = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    return [_row(line, f"{path}:{number}", f"{path.stem}-{number}") for number, line in rows]


def _row(line: str, where: str, name: str) -> CalibrationText:
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError("it is no JSON object")
        return _text_of(row, name)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no text: {error}", f"give {_FORMS}", code="CALIB-TEXT", where=where) from None


def _inputs(content: str, path: Path) -> list[CalibrationText]:
    """What aiperf sent: the texts that a model was asked, in the order of the file."""
    try:
        rows = enumerate(rows_of_inputs(content), 1)
        return [_text_of(row, f"{path.stem}-{number}") for number, row in rows]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        cause = f"is not what aiperf writes: {type(error).__name__}: {error}"
        raise InputError(cause, f"give {_FORMS}", code="CALIB-TEXT", where=str(path)) from None


_PARSERS = {".jsonl": _jsonl, ".json": _inputs}


def _text_of(row: Mapping[str, Any], name: str) -> CalibrationText:
    given = [key for key in ("text", "messages", "token_ids") if key in row]
    if len(given) != 1:
        raise ValueError('it needs one of "text", "messages" and "token_ids"')
    value = row[given[0]]
    if not value:
        raise ValueError("it is empty")
    if given[0] == "text":
        return CalibrationText(name, text=string_of(value))
    if given[0] == "messages":
        return CalibrationText(name, messages=messages_of(value))
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ValueError("token_ids should be a list of integers")
    return CalibrationText(name, token_ids=tuple(value))
