"""What a build may replace in its directory: what a build wrote. Knows files, runs no stage."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from trtkit.artifacts import entries_of, read_record
from trtkit.builds import MANIFEST
from trtkit.errors import InputError
from trtkit.pipeline.launch import FOLDER, LAUNCH_FILES
from trtkit.pipeline.stages import Stage

# Left there by a server: compiled models, and NVIDIA's llmapi model that launch/serve.sh copies out of the image.
_LEFT_BY_SERVERS = frozenset({"tensorrt_llm/1/model.py", "tensorrt_llm/1/helpers.py"})


def refuse_to_overwrite(out: Path, stages: Sequence[Stage]) -> None:
    """Raise InputError OUT-EXISTS when these stages of a build would take away files that no build wrote.

    A stage that is not up to date replaces its directory as a whole. Asked before the first of them.
    """
    for stage in stages:
        foreign = [] if stage.is_up_to_date else _foreign_files(stage.out)
        if foreign:
            raise _refused(stage.out, foreign)
    if not any(read_record(stage.out) for stage in stages) and not _is_manifest(out / MANIFEST):
        named = (out / MANIFEST, *(out / FOLDER / name for name in sorted(LAUNCH_FILES)))
        standing = [path.relative_to(out).as_posix() for path in named if path.exists()]
        if standing:
            raise _refused(out, standing)


def _foreign_files(folder: Path) -> list[str]:
    """Files of a stage's directory that its record does not have; all of them where there is no record."""
    if not folder.is_dir():
        return [folder.name] if folder.exists() else []
    record = read_record(folder)
    written: Iterable[str] = record["files"] if record else ()
    return sorted(
        name for name in entries_of(folder) - set(written) - _LEFT_BY_SERVERS if "__pycache__" not in Path(name).parts
    )


def _is_manifest(path: Path) -> bool:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and str(document.get("schema")).startswith("trtkit.manifest/")


def _refused(folder: Path, foreign: Sequence[str]) -> InputError:
    more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
    return InputError(
        f"holds {foreign[0]}{more}, which no build wrote and this one would replace",
        "choose another --out, or move such files away",
        code="OUT-EXISTS",
        where=str(folder),
    )
