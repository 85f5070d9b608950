"""YAML and --set into a BuildConfig: every mistake in one message. Knows files and paths of keys, no meaning."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trtkit.config.schema import BuildConfig
from trtkit.errors import ConfigError

_KNOWN_KEYS_PAGE = "docs/config.md lists every key"
_KINDS = ("none", "draft_target")  # of speculation; steps of pydantic's loc
# TensorRT-LLM's word for attention sinks is often taken for the streaming of tokens (TensorRT-LLM issue #6207).
_MISTAKABLE = {"streamingllm": "serving.streaming streams tokens, attention_sinks keeps endless sessions"}


def load_config(path: Path, overrides: Sequence[str] = ()) -> BuildConfig:
    """Read a build YAML; `overrides` are "dotted.key=value" and win over the file.

    Raises ConfigError naming every wrong key at once.
    """
    document = _read_yaml(path)
    for override in overrides:
        _apply(document, override)
    return parse_config(document, where=str(path))


def parse_config(document: Mapping[str, Any], where: str) -> BuildConfig:
    """Validate a parsed document; `where` names it in messages. Raises ConfigError."""
    try:
        return BuildConfig.model_validate(document)
    except ValidationError as error:
        lines = "\n".join(f"  {_explain(detail)}" for detail in error.errors())
        raise ConfigError(
            f"{where} is not a build config:\n{lines}", f"mend these keys; {_KNOWN_KEYS_PAGE}", code="CONFIG"
        ) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist", "give the path of a build YAML", code="CONFIG-FILE") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", "give a readable YAML file in UTF-8", code="CONFIG-FILE"
        ) from None
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{path} is not YAML: {error}", "check indentation, quotes and colons at that line", code="CONFIG-FILE"
        ) from None
    if not isinstance(document, dict):
        raise ConfigError(
            f"{path} holds no mapping of keys", f"start from a preset: {_KNOWN_KEYS_PAGE}", code="CONFIG-FILE"
        )
    return document


def _apply(document: dict[str, Any], override: str) -> None:
    """Set one dotted key in place, making the sections it passes through."""
    dotted, equals, value = override.partition("=")
    keys = dotted.split(".")
    if not equals or not all(keys):
        raise ConfigError(
            f"--set {override!r} is not key=value", "write e.g. --set target.dtype=float32", code="CONFIG-SET"
        )
    section = document
    for key in keys[:-1]:
        inner = section.get(key)
        if inner is None:
            inner = section[key] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override!r}: {key} is not a section", _KNOWN_KEYS_PAGE, code="CONFIG-SET")
        section = inner
    try:
        section[keys[-1]] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override!r}: the value is not YAML", "quote it", code="CONFIG-SET") from None


def _explain(detail: ErrorDetails) -> str:
    """One line for one mistake: its path, what is wrong, and for an unknown key the nearest known one."""
    path = [str(part) for part in detail["loc"]]
    where = ".".join(part for part in path if part not in _KINDS) or "the document"
    if detail["type"] == "string_type" and isinstance(detail["input"], int | float):
        return f"{where}: YAML reads {detail['input']} as a number; write it in quotes"
    if detail["type"] != "extra_forbidden":
        return f"{where}: {detail['msg'].removeprefix('Value error, ')}"
    meant = _MISTAKABLE.get(path[-1].replace("_", "").lower())
    if meant is not None:
        return f"{where}: unknown key; {meant}"
    known = known_keys(path[:-1])
    if path[-1] in known:  # of another member of the union
        kind = next(part for part in path if part in _KINDS)
        return f"{where}: not a key of kind {kind}; leave it out"
    close = difflib.get_close_matches(path[-1], known, n=1)
    return f"{where}: unknown key" + (f", did you mean {close[0]}?" if close else "")


def known_keys(path: Sequence[str]) -> list[str]:
    """The keys allowed in the section at `path` (a union member counts as a step, as in pydantic's loc)."""
    sections: list[type[BaseModel]] = [BuildConfig]
    for step in path:
        inner = [m for s in sections if step in s.model_fields for m in _models_in(s.model_fields[step].annotation)]
        sections = inner or sections
    return sorted({key for section in sections for key in section.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The section classes inside an annotation such as `Gpu | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models_in(argument)]
