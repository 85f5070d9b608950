"""What aiperf sent, out of the inputs.json that it leaves beside its figures. Knows that file, no endpoint."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_TEXT_KEYS = ("text_input", "prompt", "text")
_LENGTH_KEYS = ("max_tokens", "max_completion_tokens", "output_length")


def rows_of_inputs(text: str) -> Iterator[dict[str, Any]]:
    """The requests in the order of the file, as lines of a prompt file have them.

    Raises ValueError, KeyError or TypeError for a file of another kind, or a request without a text.
    """
    for session in json.loads(text)["data"]:
        for payload in session["payloads"]:
            yield _row(payload)


def _row(payload: Mapping[str, Any]) -> dict[str, Any]:
    lengths = [payload[key] for key in _LENGTH_KEYS if key in payload]
    row: dict[str, Any] = {"output_length": lengths[0]} if lengths else {}
    if "messages" in payload:
        return row | {"messages": payload["messages"]}
    texts = [payload[key] for key in _TEXT_KEYS if key in payload]
    if len(texts) != 1:
        raise ValueError(f'a request has none of {", ".join(_TEXT_KEYS)} and "messages"')
    return row | {"text": texts[0]}
