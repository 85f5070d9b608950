"""Reads a converted checkpoint again and compares it with its manifest. Knows checksums and headers, no model."""

import json
import os
from pathlib import Path
from typing import Any

from trtkit.checkpoints.safetensors_header import read_header
from trtkit.conversion.checksum import crc32_of
from trtkit.conversion.report import MANIFEST_NAME
from trtkit.errors import CheckpointError
from trtkit.progress import OnProgress, Progress, silent


def verify_checkpoint(folder: Path, on_progress: OnProgress = silent) -> int:
    """Compare every rank file's bytes, as the disk gives them back, with the manifest; returns the bytes read.

    Raises CheckpointError CONV-VERIFY naming the first file that differs or is missing.
    """
    files: dict[str, dict[str, Any]] = _manifest(folder)["files"]
    total = 0
    for done, (name, entry) in enumerate(files.items(), start=1):
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry["bytes"]:
            raise _differs(path, "is missing or has another size")
        _forget_cached(path)
        read_header(path)
        if crc32_of(path) != entry["crc32"]:
            raise _differs(path, "does not have the checksum that the manifest states")
        total += entry["bytes"]
        on_progress(Progress("verify", done, len(files), "files"))
    return total


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        document["files"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _differs(folder / MANIFEST_NAME, f"cannot be read ({type(error).__name__})") from None
    return document


def _forget_cached(path: Path) -> None:
    """Let the kernel drop the file's clean pages, so that the next read comes from the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _differs(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        what, "convert again into another directory and check the disk", code="CONV-VERIFY", where=str(path)
    )
