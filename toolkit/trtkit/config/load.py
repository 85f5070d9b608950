"""YAML and --set into a BuildConfig: every mistake in one message. Knows paths of keys, no meaning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from trtkit.config.document import read_document, read_value
from trtkit.config.mistakes import explain
from trtkit.config.schema import BuildConfig
from trtkit.errors import ConfigError

_KNOWN_KEYS_PAGE = "docs/config.md lists every key"


def load_config(path: Path, overrides: Sequence[str] = ()) -> BuildConfig:
    """Read a build YAML; `overrides` are "dotted.key=value" and win over the file.

    Raises ConfigError naming every wrong key at once.
    """
    document = read_document(path)
    for override in overrides:
        _apply(document, override)
    return parse_config(document, where=str(path))


def parse_config(document: Mapping[str, Any], where: str) -> BuildConfig:
    """Validate a parsed document; `where` names it in messages. Raises ConfigError."""
    try:
        return BuildConfig.model_validate(document)
    except ValidationError as error:
        lines = "\n".join(f"  {explain(detail)}" for detail in error.errors())
        raise ConfigError(
            f"{where} is not a build config:\n{lines}", f"mend these keys; {_KNOWN_KEYS_PAGE}", code="CONFIG"
        ) from None


def _apply(document: dict[str, Any], override: str) -> None:
    """Set one dotted key in place, making the sections it passes through."""
    dotted, equals, value = override.partition("=")
    keys = [key.strip() for key in dotted.split(".")]
    if not equals or not all(keys):
        raise ConfigError(
            f"--set {override!r} is not key=value", "write e.g. --set target.dtype=float32", code="CONFIG-SET"
        )
    section = document
    for key in keys[:-1]:
        inner = section.get(key) or {}
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override!r}: {key} is not a section", _KNOWN_KEYS_PAGE, code="CONFIG-SET")
        section[key] = dict(inner)  # a copy: in the file, another section may be an alias of this one
        section = section[key]
    try:
        section[keys[-1]] = read_value(value)
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"--set {override!r}: the value is not YAML", "quote it", code="CONFIG-SET") from None
