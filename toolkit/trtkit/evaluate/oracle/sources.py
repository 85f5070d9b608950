"""The original checkpoint that a build was made from: is it still what was built? Knows the manifest and files."""

from pathlib import Path

from trtkit.artifacts import sha256_of
from trtkit.builds import Build
from trtkit.errors import CheckpointError


def unchanged_source(build: Build, role: str) -> Path:
    """The folder of the checkpoint that "target" or "draft" was converted from.

    Files of the recorded size and time are trusted, others are hashed. Raises CheckpointError when the folder is gone
    or a file has other content: an oracle on another checkpoint would prove nothing.
    """
    folder = build.source(role)
    for name, entry in build.manifest["inputs"][role]["files"].items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(
                f"the {role}'s original checkpoint is no longer there: {name} is missing",
                "bring it back, build again, or give a record made earlier with --record",
                code="SOURCE-MISSING",
                where=str(path),
            )
        stat = path.stat()
        if (stat.st_size, stat.st_mtime_ns) == (entry["bytes"], entry["mtime_ns"]):
            continue
        if stat.st_size != entry["bytes"] or sha256_of(path) != entry["sha256"]:
            raise CheckpointError(
                f"the {role}'s original checkpoint has changed since the build",
                "run trtkit build again, so that both sides mean the same checkpoint",
                code="SOURCE-CHANGED",
                where=str(path),
            )
    return folder
