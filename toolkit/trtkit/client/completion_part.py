"""A piece of an OpenAI-compatible completion, from the JSON that a server sends. Knows no connection."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trtkit.errors import ServerError

_ID_PREFIX = "token_id:"


@dataclass(frozen=True)
class CompletionPart:
    """A piece of an answer. token_ids is None where the server does not tell; counts come with the last piece."""

    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: str | None = None
    num_prompt_tokens: int | None = None


def parsed(data: bytes, source: str) -> dict[str, Any]:
    """The JSON object that a server sent. Raises ServerError for anything else, and for one that is an error."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or "error" in document:
        said = data[:300].decode("utf-8", "replace")
        raise ServerError(f"{source} sends no completion: {said}", "see the server's log", code="OPENAI")
    return document


@contextlib.contextmanager
def as_promised(document: object, source: str) -> Iterator[None]:
    """Raise ServerError where a document is read that is not built as the protocol says."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(
            f"{source} does not speak the protocol ({type(error).__name__} {error}): {str(document)[:300]}",
            "give the URL of an OpenAI-compatible server",
            code="OPENAI",
        ) from None


def part_of(document: dict[str, Any], source: str) -> CompletionPart:
    """What an event, or a whole answer, holds. Raises ServerError when it is not built as the protocol says."""
    with as_promised(document, source):
        choices: list[dict[str, Any]] = document.get("choices") or [{}]
        choice = choices[0]
        text, count = choice.get("text") or "", (document.get("usage") or {}).get("prompt_tokens")
        if not isinstance(text, str) or not (count is None or type(count) is int):
            raise TypeError("text is a string, and prompt_tokens a number")
        return CompletionPart(
            text=text,
            token_ids=_token_ids(choice) if choice else (),
            finish_reason=choice.get("finish_reason"),
            num_prompt_tokens=count,
        )


def _token_ids(choice: dict[str, Any]) -> tuple[int, ...] | None:
    """From `token_ids`, or from log-probabilities whose tokens are written as ids; None where neither is there."""
    if isinstance(choice.get("token_ids"), list):
        if not all(type(token) is int for token in choice["token_ids"]):
            raise TypeError("token ids are whole numbers")
        return tuple(choice["token_ids"])
    tokens = (choice.get("logprobs") or {}).get("tokens")
    if tokens and all(isinstance(token, str) and token.startswith(_ID_PREFIX) for token in tokens):
        return tuple(int(token.removeprefix(_ID_PREFIX)) for token in tokens)
    return () if not choice.get("text") else None
