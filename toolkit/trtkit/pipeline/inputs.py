"""Content digests of the source checkpoints. A file of unchanged size and times is not read again."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.artifacts import key_of, sha256_of
from trtkit.config.schema import Model
from trtkit.pipeline.tokenizer import TOKENIZER_FILES
from trtkit.progress import OnProgress, Progress

_SUFFIXES = {".json", ".safetensors", ".jinja", ".model", ".gguf", ".bin"}


@dataclass(frozen=True)
class CheckpointInput:
    """One source checkpoint: how the YAML names it, where it lies, and the digest of its content.

    files: name -> {"bytes", "mtime_ns", "ctime_ns", "sha256"}.
    """

    checkpoint: str
    folder: Path
    files: Mapping[str, Mapping[str, Any]]

    @property
    def digest(self) -> str:
        """Digest of names and contents; times do not enter."""
        return key_of({name: entry["sha256"] for name, entry in self.files.items()})

    @property
    def weights_digest(self) -> str:
        """The same without what only a tokenizer, or a server, reads: a new chat template is no new model."""
        files = {name: entry["sha256"] for name, entry in self.files.items() if name not in TOKENIZER_FILES}
        return key_of(files)

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
    """Hash the files of a checkpoint. `known` is the `files` record of the previous build, trusted by size and times.

    The time of the last change of the inode is among them: a copy that keeps a file's own time does not keep that.
    """
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix in _SUFFIXES]
    total = sum(path.stat().st_size for path in paths)
    done = 0
    files: dict[str, Mapping[str, Any]] = {}
    for path in paths:
        stat = path.stat()
        state = {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "ctime_ns": stat.st_ctime_ns}
        entry = known.get(path.name, {})
        is_known = "sha256" in entry and all(entry.get(name) == value for name, value in state.items())
        files[path.name] = entry if is_known else {**state, "sha256": sha256_of(path)}
        done += stat.st_size
        on_progress(Progress(f"digest {role}", done, total, "bytes"))
    return CheckpointInput(model.checkpoint, folder.resolve(), files)
