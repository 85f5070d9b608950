"""Prompts and request traces in the files that aiperf reads and writes. Knows the lines, sends nothing.

A line is a request: `single_turn` has "text", `mooncake_trace` has "text_input"; both may have "timestamp" (in
milliseconds) and "output_length" (tokens).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtkit.errors import InputError
from trtkit.evaluate.bench.plan import BenchPrompt

_TEXT_KEYS = ("text", "text_input")
_MOST_MS = 1e14  # the clock times of some traces lie below, and no mistake is waited for
_OTHER_KEYS = {"timestamp", "output_length", "type", "role", "session_id"}


def read_trace(path: Path, max_new_tokens: int) -> list[BenchPrompt]:
    """The requests of a trace, in the order of their times, counted from the first one.

    max_new_tokens bounds every answer, and is what a line without "output_length" asks for. Raises InputError for a
    line that holds no text: a length or hashes are no prompt that can be sent.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the trace: {error}", _FIX, code="TRACE", where=str(path)) from None
    rows = [_row(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InputError("the file holds no request", _FIX, code="TRACE", where=str(path))
    first_ms = min(row.get("timestamp", 0) for row in rows)
    prompts = [_prompt(row, path.stem, max_new_tokens, first_ms) for row in rows]
    return sorted(prompts, key=lambda prompt: prompt.at_s)


def prompts_jsonl(prompts: Sequence[BenchPrompt]) -> str:
    """aiperf's --custom-dataset-type single_turn; also what `--prompts` reads."""
    return _jsonl({"text": prompt.text, "output_length": prompt.max_new_tokens} for prompt in prompts)


def trace_jsonl(prompts: Sequence[BenchPrompt], times_s: Sequence[float]) -> str:
    """aiperf's --custom-dataset-type mooncake_trace, sent at these times with --fixed-schedule."""
    return _jsonl(
        {"timestamp": round(1000 * at_s, 3), "text_input": prompt.text, "output_length": prompt.max_new_tokens}
        for prompt, at_s in zip(prompts, times_s, strict=True)
    )


_FIX = 'give JSONL with "text" or "text_input", "timestamp" in milliseconds and "output_length" on each line'


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        texts = [row[key] for key in _TEXT_KEYS if key in row]
        if len(texts) != 1 or not isinstance(texts[0], str) or not texts[0]:
            raise ValueError('it needs one of "text" and "text_input"')
        if unknown := sorted(row.keys() - _OTHER_KEYS - set(_TEXT_KEYS)):
            raise ValueError(f"{unknown[0]} is nothing that can be sent here")
        texts[0].encode()  # half of a surrogate pair is no character, and can be sent nowhere
        _check_numbers(row.get("timestamp", 0), row.get("output_length", 1))
        return dict(row)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"not a request: {error}", _FIX, code="TRACE", where=where) from None


def _check_numbers(timestamp: object, output_length: object) -> None:
    if not (isinstance(timestamp, int | float) and 0 <= timestamp <= _MOST_MS):
        raise ValueError(f'"timestamp" must be between 0 and {_MOST_MS:g} milliseconds, not {timestamp!r}')
    if not (type(output_length) is int and output_length >= 1):
        raise ValueError(f'"output_length" must be a whole number from 1, not {output_length!r}')


def _prompt(row: Mapping[str, Any], group: str, max_new_tokens: int, first_ms: float) -> BenchPrompt:
    text = str(next(row[key] for key in _TEXT_KEYS if key in row))
    length = min(int(row.get("output_length", max_new_tokens)), max_new_tokens)
    return BenchPrompt(text, length, group, (row.get("timestamp", 0) - first_ms) / 1000)


def _jsonl(rows: Any) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
