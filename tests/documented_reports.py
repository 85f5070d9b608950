"""The keys that docs/verification.md lists for each JSON document, by its schema, and those that a document has."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "verification.md"
_OF_OTHERS = {"versions", "definitions", "groups", "recommended_max_draft_len", "kv_errors"}
"""Keys whose value is keyed by names of its own: packages, figures, classes of prompts, loads, formats."""


@cache
def blocks() -> dict[str, str]:
    """Schema -> the block of the page that lists its keys."""
    found = re.findall(r"^```text\n(\{.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {match.group(1): block for block in found if (match := re.match(r'\{"schema": "([^"]+)"', block))}


def documented_keys(schema: str) -> set[str]:
    """Every quoted key of the block; values have other characters, or stand for several."""
    return set(re.findall(r'"([a-z0-9_]+)"', blocks()[schema]))


def keys_of(value: object) -> set[str]:
    """Every key at any depth, but for what is keyed by names of its own."""
    if isinstance(value, Mapping):
        return set(value).union(*(keys_of(inner) for key, inner in value.items() if key not in _OF_OTHERS))
    if isinstance(value, list | tuple):
        return set().union(*map(keys_of, value))
    return set()


def undocumented(document: Mapping[str, object]) -> set[str]:
    """Keys of a document that the page does not list for its schema."""
    return keys_of(document) - documented_keys(str(document["schema"]))
