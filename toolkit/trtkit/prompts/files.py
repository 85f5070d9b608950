"""The prompts that parity and bench use: the shipped suites and users' files. Knows text, no tokenizer and no model."""

import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any

from trtkit.artifacts import key_of
from trtkit.errors import InputError
from trtkit.prompts.aiperf_inputs import rows_of_inputs
from trtkit.prompts.fields import messages_of, string_of

GROUPS = ("short", "chat", "multilingual", "code", "long", "repeat", "window")
_UNSHOWABLE = ("Cc", "Zl", "Zp")  # control characters, and what ends a line
_FORMS = (
    'a JSONL file with "text" or "messages" on each line, the inputs.json of an aiperf run, '
    "or a text file with one prompt a line"
)


@dataclass(frozen=True)
class Prompt:
    """One prompt: plain `text`, or chat `messages` of (role, content), which the model's chat template renders.

    `group` is the class of prompt that a report sums up by. `output_length` bounds the answer in a bench.
    """

    name: str
    group: str
    text: str | None = None
    messages: tuple[tuple[str, str], ...] = ()
    output_length: int | None = None

    @property
    def key(self) -> str:
        """A digest of the prompt as given; the length of an answer is no part of it."""
        return key_of({key: value for key, value in asdict(self).items() if key != "output_length"})


def shipped_prompts() -> list[Prompt]:
    """The suites that trtkit ships, classes taking turns, so that the first n prompts hold something of each."""
    folder = resources.files("trtkit.prompts")
    suites = [_parse_jsonl(folder.joinpath(f"{g}.jsonl").read_text(encoding="utf-8"), f"{g}.jsonl") for g in GROUPS]
    return [prompt for row in zip_longest(*suites) for prompt in row if prompt is not None]


def read_prompts(path: Path) -> list[Prompt]:
    """Read a user's file; names default to the line number, the group to the file's stem.

    Raises InputError for a file that is missing, empty, or has a line that is no prompt, or a name given twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the prompts: {error}", f"give {_FORMS}", code="PROMPTS", where=str(path)
        ) from None
    prompts = _PARSERS.get(path.suffix.lower(), _parse_lines)(text, str(path))
    if not prompts:
        raise InputError("the file holds no prompt", f"give {_FORMS}", code="PROMPTS", where=str(path))
    _refuse_duplicates(prompts, str(path))
    return prompts


def choose_prompts(path: Path | None, limit: int | None) -> list[Prompt]:
    """The prompts of `path`, or the shipped ones; the first `limit` of them."""
    return (shipped_prompts() if path is None else read_prompts(path))[:limit]


def _parse_lines(text: str, where: str) -> list[Prompt]:
    group = Path(where).stem
    return [Prompt(f"{group}-{number}", group, text=line) for number, line in _lines(text)]


def _parse_jsonl(text: str, where: str) -> list[Prompt]:
    return [_parse_row(line, f"{where}:{number}", Path(where).stem, number) for number, line in _lines(text)]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers. Not splitlines(): a form feed or U+2028 ends no line."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _parse_inputs(text: str, where: str) -> list[Prompt]:
    group = Path(where).stem
    try:
        return [_prompt_of(row, f"{group}-{number}", group) for number, row in enumerate(rows_of_inputs(text), 1)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"not what aiperf writes: {error}", f"give {_FORMS}", code="PROMPTS", where=where) from None


_PARSERS = {".jsonl": _parse_jsonl, ".json": _parse_inputs}


def _parse_row(line: str, where: str, group: str, number: int) -> Prompt:
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError("it is no JSON object")
        return _prompt_of(row, f"{group}-{number}", group)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"not a prompt: {error}", f"give {_FORMS}", code="PROMPTS", where=where) from None


def _prompt_of(row: Mapping[str, Any], name: str, group: str) -> Prompt:
    if unknown := sorted(row.keys() - {"name", "group", "text", "messages", "output_length"}):
        raise ValueError(f"unknown key {unknown[0]}")
    if ("text" in row) == ("messages" in row):
        raise ValueError('it needs "text" or "messages", and not both')
    messages = messages_of(row.get("messages", []))
    text = string_of(row["text"]) if "text" in row else None
    if not text and not messages:
        raise ValueError("it is empty")
    length = row.get("output_length")
    if length is not None and (type(length) is not int or length < 1):
        raise ValueError(f"output_length must be a whole number from 1, not {length!r}")
    return Prompt(_label(row.get("name", name)), _label(row.get("group", group)), text, messages, length)


def _label(value: object) -> str:
    """A name as reports show it: in one line, without characters that terminals and XML take for something else."""
    text = string_of(value)
    if any(unicodedata.category(character) in _UNSHOWABLE for character in text):
        raise ValueError(f"{text!r} holds control characters")
    return text


def _refuse_duplicates(prompts: Iterable[Prompt], where: str) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.name in seen:
            raise InputError(f"two prompts are named {prompt.name}", "rename one", code="PROMPTS", where=where)
        seen.add(prompt.name)
