"""OUT: which directories a conversion may write, and which it may replace. Knows files, converts nothing."""

import json
from pathlib import Path

from trtkit.artifacts import entries_of, read_record
from trtkit.checkpoints.draft_vocabulary import DRAFT_VOCABULARY_FILE
from trtkit.conversion.disk_space import existing
from trtkit.conversion.report import MANIFEST_NAME
from trtkit.errors import InputError


def refuse_out(source: Path, out: Path) -> None:
    """Raise InputError OUT-EXISTS when `out` is somebody else's, below a file, or in the checkpoint."""
    if out.exists() and not (out / MANIFEST_NAME).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise _refused(out, "exists and is no converted checkpoint", "choose another OUT, or remove it yourself")
    if not existing(out.parent).is_dir():
        raise _refused(out, f"lies below {existing(out.parent)}, which is a file", "choose another OUT")
    folder = source.resolve()
    if folder in (out, *out.parents) or out in folder.parents:
        raise _refused(out, "OUT and the checkpoint lie in each other", "choose another OUT")


def refuse_to_replace(out: Path) -> None:
    """Raise InputError OUT-EXISTS when another `out` cannot take this one's place without harm.

    Everything in it goes, so nothing may lie there that no conversion wrote; and neither a mount point nor the
    directory that somebody stands in can be renamed away.
    """
    if not out.exists():
        return
    if out.is_mount():
        raise _refused(out, "is a mount point, which cannot be replaced as a whole", "choose a folder inside it")
    if Path.cwd().is_relative_to(out):
        raise _refused(
            out, "would be replaced as a whole, and this command runs in it", "choose another OUT, or run it elsewhere"
        )
    others = sorted(entries_of(out) - _written(out))
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise _refused(
            out,
            f"holds {others[0]}{more}, which no conversion wrote, and would be replaced as a whole",
            "choose another OUT, or move such files away",
        )


def _written(out: Path) -> set[str]:
    """What the conversion wrote, as its record says; without one, as its manifest says."""
    record = read_record(out)
    if record is not None:
        return set(record["files"])
    try:
        named = set(json.loads((out / MANIFEST_NAME).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {*named, MANIFEST_NAME, "config.json", DRAFT_VOCABULARY_FILE}


def _refused(out: Path, cause: str, fix: str) -> InputError:
    return InputError(cause, fix, code="OUT-EXISTS", where=str(out))
