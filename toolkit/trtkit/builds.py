"""A finished build directory: its manifest and where its parts lie. Knows the layout, not how it is made."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.config.load import parse_config
from trtkit.config.schema import BuildConfig
from trtkit.errors import InputError

MANIFEST = "manifest.json"
SCHEMA = "trtkit.manifest/1"


@dataclass(frozen=True)
class Build:
    """One finished build: the folder, its manifest as written, and the configuration it was made from."""

    folder: Path
    manifest: dict[str, Any]
    config: BuildConfig

    @property
    def repository(self) -> Path:
        """The Triton model repository."""
        return self.folder / "model_repository"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's files."""
        return self.folder / "tokenizer"

    def checkpoint(self, role: str) -> Path:
        """The converted checkpoint of "target" or "draft"."""
        return self.folder / "checkpoints" / role

    def engine(self, role: str) -> Path:
        """The engine directory of "target" or "draft"."""
        return self.folder / "engines" / role

    def source(self, role: str) -> Path:
        """The Hugging Face checkpoint that "target" or "draft" was converted from."""
        return Path(self.manifest["inputs"][role]["folder"])


def open_build(folder: Path) -> Build:
    """Read a build directory. Raises InputError when it is none, unfinished, or of another manifest version."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{folder} is not a finished build: {MANIFEST} is missing",
            "run `trtkit build CONFIG` first",
            code="BUILD-MISSING",
            where=str(path),
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read: {error}", "run `trtkit build` again", code="BUILD-MANIFEST", where=str(path)
        ) from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise InputError(
            f"schema is not {SCHEMA}", "build again with this version", code="BUILD-MANIFEST", where=str(path)
        )
    return Build(folder, manifest, parse_config(manifest["config"], where=str(path)))
