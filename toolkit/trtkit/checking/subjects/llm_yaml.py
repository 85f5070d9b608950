"""model.yaml of Triton's llmapi model, as a mapping. Knows the file, not what its keys mean."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trtkit.errors import InputError

LLM_FILE = "model.yaml"


def read_llm_yaml(version_folder: Path) -> Mapping[str, Any] | None:
    """The mapping in `version_folder`/model.yaml, None without such a file. Raises InputError LLM-YAML."""
    path = version_folder / LLM_FILE
    if not path.is_file():
        return None
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            f"cannot be read as YAML: {error}", "mend it at that place", code="LLM-YAML", where=str(path)
        ) from None
    if not isinstance(document, dict):
        raise InputError(
            "holds no mapping of keys",
            "write model: and the other arguments of LLM()",
            code="LLM-YAML",
            where=str(path),
        )
    return document
