"""A user's message as the prompt that a chat model was trained on. Knows template files, no server."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from trtkit.errors import InputError, MissingToolError


def render_chat(folder: Path, messages: Sequence[Mapping[str, str]], now: datetime.datetime) -> str:
    """The text of `messages` ("role", "content") in the chat template of a tokenizer folder, ready for the answer.

    Templates are foreign code, so they run in Jinja's sandbox. Raises InputError when the folder has no template or
    the template refuses the messages, MissingToolError without Jinja.
    """
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingToolError("chat templates need jinja2", "pip install 'trtkit[serve]'", code="JINJA") from None
    config = _config(folder)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = now.strftime
    special = {key: _text(config.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    try:
        template = environment.from_string(_template(folder, config))
        return template.render(messages=messages, add_generation_prompt=True, **special)
    except TemplateError as error:
        raise InputError(
            f"the chat template refuses the messages: {error}",
            "ask without --chat",
            code="CHAT-TEMPLATE",
            where=str(folder),
        ) from None


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", "run trtkit build again", where=str(path)) from None
    return document if isinstance(document, dict) else {}


def _template(folder: Path, config: Mapping[str, Any]) -> str:
    """chat_template.jinja, or the entry of tokenizer_config.json, where a list holds several by name."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not isinstance(template, str):
        raise InputError(
            "the tokenizer has no chat template", "ask without --chat", code="CHAT-TEMPLATE", where=str(folder)
        )
    return template


def _text(token: Any) -> str:
    """A special token's text; tokenizer_config.json writes it as a string or as an object."""
    return str(token["content"]) if isinstance(token, dict) else str(token or "")
