"""A YAML file or value as Python objects: every key once, no depth without end. Knows YAML, no key of the schema."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from trtkit.errors import ConfigError

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but for a key that stands twice: YAML forbids it, and PyYAML takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping of a node. Raises ConstructorError for a key that stands twice in it."""
        seen: dict[tuple[str, str], yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            first = seen.setdefault((key.tag, key.value), key.start_mark)
            if first is not key.start_mark:
                raise yaml.constructor.ConstructorError(
                    f"{key.value} stands in line {first.line + 1}", None, "and once more", key.start_mark
                )
        return super().construct_mapping(node, deep)


def read_document(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. Raises ConfigError CONFIG-FILE naming the file, and the line if there is one.

    A byte order mark is skipped.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise _of_file(f"{path} does not exist", "give the path of a build YAML") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _of_file(f"{path} cannot be read: {error}", "give a readable YAML file in UTF-8") from None
    try:
        document = _load(text)
    except yaml.YAMLError as error:
        problem = str(error).replace("<unicode string>", path.name)
        raise _of_file(f"{path} is not YAML: {problem}", "check keys, indentation and quotes at that line") from None
    except RecursionError:
        raise _of_file(f"{path} nests too deep", "a build YAML has sections, and keys in them, no more") from None
    if not isinstance(document, dict):
        raise _of_file(f"{path} holds no mapping of keys", "start from a preset: `trtkit init --list` shows them")
    return document


def read_value(text: str) -> Any:
    """A value as YAML reads it. Raises yaml.YAMLError, RecursionError."""
    return _load(text)


def _load(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def _of_file(cause: str, fix: str) -> ConfigError:
    return ConfigError(cause, fix, code="CONFIG-FILE")
