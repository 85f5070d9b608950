"""Writes the files of a report, each whole or not at all. Knows no content."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtkit.artifacts import disk_error, write_text


def refuse_unwritable(out: Path) -> None:
    """Raise BuildError when `out` takes no file or cannot be made, before anything is measured. Leaves nothing."""
    try:
        standing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
        with tempfile.TemporaryFile(dir=standing):
            pass
    except OSError as error:
        raise disk_error(error, out) from error


def write_files(out: Path, texts: Mapping[str, str]) -> None:
    """Write each text under its name in `out`. Raises BuildError when the disk is full."""
    try:
        for name, text in texts.items():
            write_text(out / name, text)
    except OSError as error:
        raise disk_error(error, out) from error


def json_text(document: Mapping[str, Any]) -> str:
    """A report as JSON that every reader takes: without infinities and not-a-number."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
