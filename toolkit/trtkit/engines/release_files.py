"""The release files: one JSON per TensorRT-LLM version, each stating what differs from the one it extends.

Knows inheritance and nothing of what the values mean. Keys of its own, beside the values: "extends" names the file
that this one differs from, "same_as" further versions with the same values, "remove" dotted keys to leave out.
"""

import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

_OWN_KEYS = ("extends", "same_as", "remove")


def read_releases(folder: Traversable | None = None) -> list[dict[str, Any]]:
    """The values of every version, inheritance resolved, in no particular order; None reads trtkit's own files.

    Versions share what they inherit: the values are to be read, not changed.
    """
    documents = {}
    for entry in (folder or files("trtkit.engines") / "releases").iterdir():
        if entry.name.endswith(".json"):
            document = json.loads(entry.read_text(encoding="utf-8"))
            documents[document["version"]] = document
    resolved: dict[str, dict[str, Any]] = {}
    return [values for version in documents for values in _versions(version, documents, resolved)]


def _versions(
    version: str, documents: dict[str, dict[str, Any]], resolved: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """One file's values, once for every version that it names."""
    names = (version, *documents[version].get("same_as", ()))
    return [_resolve(version, documents, resolved) | {"version": name} for name in names]


def _resolve(version: str, documents: dict[str, dict[str, Any]], resolved: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The values of the file that `version` extends, with this file's laid over them; `resolved` remembers them."""
    if version not in resolved:
        own = documents[version]
        inherited = _resolve(own["extends"], documents, resolved) if "extends" in own else {}
        values = _overlay(inherited, {key: value for key, value in own.items() if key not in _OWN_KEYS})
        for dotted in own.get("remove", ()):
            values = _without(values, dotted.split("."))
        resolved[version] = values
    return resolved[version]


def _overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Objects are merged key by key, everything else is replaced; neither argument is changed."""
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = _overlay(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _without(values: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """A copy that lacks the key at the end of `path`; raises KeyError when it is not there."""
    key, *rest = path
    inner = values[key]
    left = {name: value for name, value in values.items() if name != key}
    return left | {key: _without(inner, rest)} if rest else left
