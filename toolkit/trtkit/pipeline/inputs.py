"""Content digests of the source checkpoints. A file of unchanged size and time is not read again."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.artifacts import key_of, sha256_of
from trtkit.config.schema import Model
from trtkit.progress import OnProgress, Progress

_SUFFIXES = {".json", ".safetensors", ".jinja", ".model", ".gguf", ".bin"}


@dataclass(frozen=True)
class CheckpointInput:
    """One source checkpoint: how the YAML names it, where it lies, and the digest of its content.

    files: name -> {"bytes", "mtime_ns", "sha256"}.
    """

    checkpoint: str
    folder: Path
    files: Mapping[str, Mapping[str, Any]]

    @property
    def digest(self) -> str:
        """Digest of names and contents; times do not enter."""
        return key_of({name: entry["sha256"] for name, entry in self.files.items()})

    def as_dict(self) -> dict[str, Any]:
        """The record in the manifest."""
        return {
            "checkpoint": self.checkpoint,
            "folder": str(self.folder),
            "digest": self.digest,
            "files": {name: dict(entry) for name, entry in self.files.items()},
        }


def digest_input(
    role: str, model: Model, folder: Path, known: Mapping[str, Mapping[str, Any]], on_progress: OnProgress
) -> CheckpointInput:
    """Hash the files of a checkpoint. `known` is the `files` record of the previous build, trusted by size and time."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix in _SUFFIXES]
    total = sum(path.stat().st_size for path in paths)
    done = 0
    files: dict[str, Mapping[str, Any]] = {}
    for path in paths:
        stat = path.stat()
        entry = known.get(path.name)
        if entry is None or (entry["bytes"], entry["mtime_ns"]) != (stat.st_size, stat.st_mtime_ns):
            entry = {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": sha256_of(path)}
        files[path.name] = entry
        done += stat.st_size
        on_progress(Progress(f"digest {role}", done, total, "bytes"))
    return CheckpointInput(model.checkpoint, folder.resolve(), files)
