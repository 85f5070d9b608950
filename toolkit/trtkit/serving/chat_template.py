"""Messages as the prompt that a chat model was trained on. Knows template files, no tensors and no server."""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from trtkit.errors import InputError, MissingToolError, RequestError

_LOOKS_LIKE_MESSAGES = re.compile(r"\s*\[\s*\{")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
# How a template, which is a program, may fail besides refusing.
_PROGRAM_FAILURES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


class ChatTemplate:
    """The chat template of one tokenizer folder. Templates are foreign code, so they run in Jinja's sandbox."""

    def __init__(self, template: Any, special: Mapping[str, str], folder: Path) -> None:
        self._template = template
        self._special = special
        self._folder = folder

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read and compile. Raises InputError when the folder has no template, MissingToolError without Jinja."""
        try:
            from jinja2 import TemplateError

            from trtkit.serving.chat_environment import chat_environment
        except ImportError:
            raise MissingToolError("chat templates need jinja2", "pip install 'trtkit[serve]'", code="JINJA") from None
        config = _config(folder)
        try:
            template = chat_environment().from_string(_source(folder, config))
        except TemplateError as error:
            raise _unusable(f"the chat template is none: {error}", folder) from None
        special = {key: text for key in _SPECIAL if (text := _text(config.get(key)))}
        return cls(template, special, folder)

    def render(self, messages: Sequence[Mapping[str, str]], now: datetime.datetime) -> str:
        """The text of `messages` ("role", "content"), ready for the answer. It holds its own BOS, if it wants one.

        Raises InputError when the template refuses the messages.
        """
        from jinja2 import TemplateError

        try:
            return str(
                self._template.render(
                    messages=messages,
                    tools=None,
                    documents=None,
                    add_generation_prompt=True,
                    strftime_now=now.strftime,
                    **self._special,
                )
            )
        except TemplateError as error:
            raise _unusable(f"the chat template refuses the messages: {error}", self._folder) from None
        except _PROGRAM_FAILURES as error:
            raise _unusable(f"the chat template fails: {type(error).__name__}: {error}", self._folder) from None


def messages_of(text: str) -> list[dict[str, str]]:
    """A JSON list of messages, or plain text as one message of the user.

    A content may be a list of parts of text, as OpenAI's clients send it. Raises RequestError for a list whose entries
    are no messages.
    """
    if not _LOOKS_LIKE_MESSAGES.match(text):
        return [{"role": "user", "content": text}]
    try:
        messages = json.loads(text)
        json.dumps(messages, ensure_ascii=False).encode("utf-8")  # half a surrogate pair is no character
        return [{"role": _string(message["role"]), "content": _content(message["content"])} for message in messages]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RequestError(
            f"input text_input is no list of messages: {type(error).__name__}: {error}",
            'send [{"role": "user", "content": "..."}], or plain text for one message',
            code="REQ-CHAT",
        ) from None


def _content(content: Any) -> str:
    """A message's text. TypeError for what is none: a template would print Python's way of writing it."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if any(part["type"] != "text" for part in parts):
        raise TypeError("a part of a content is no text")
    return "".join(_string(part["text"]) for part in parts)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no string")
    return value


def _unusable(cause: str, folder: Path) -> InputError:
    return InputError(cause, "ask without the chat template", code="CHAT-TEMPLATE", where=str(folder))


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read: {error}", "run trtkit build again", where=str(path)) from None
    return document if isinstance(document, dict) else {}


def _source(folder: Path, config: Mapping[str, Any]) -> str:
    """chat_template.jinja, or the entry of tokenizer_config.json, where a list holds several by name."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be read: {error}", "run trtkit build again", where=str(path)) from None
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[-1].get("template") if named else None
    if not isinstance(template, str):
        raise _unusable("the tokenizer has no chat template", folder)
    return template


def _text(token: Any) -> str:
    """A special token's text; tokenizer_config.json writes it as a string or as an object."""
    return str(token.get("content") or "") if isinstance(token, dict) else str(token or "")
