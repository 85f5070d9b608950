"""Stage directories and small files: written whole or not at all, stages recognised by a key. Knows no content."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtkit.errors import BuildError, MissingToolError, TrtkitError

STAGE_RECORD = ".trtkit-stage.json"
_CHUNK_BYTES = 1 << 20


def key_of(inputs: Mapping[str, Any]) -> str:
    """A short digest of everything that decides a stage's output; equal inputs give equal keys."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def sha256_of(path: Path) -> str:
    """Digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def is_complete(out: Path, key: str, *, beside_others: bool = False) -> bool:
    """Whether `out` was finished with this key and still holds every file at its recorded size.

    beside_others: files that the stage did not write may lie there too; without it they make `out` another directory.
    """
    record = read_record(out)
    if record is None or record["key"] != key:
        return False
    recorded: dict[str, int] = record["files"]
    sizes = _file_sizes(out)
    return recorded == ({name: sizes[name] for name in recorded.keys() & sizes} if beside_others else sizes)


def read_record(out: Path) -> dict[str, Any] | None:
    """The stage record in `out`: {"stage", "key", "files": {path: bytes}}, or None when there is no usable one."""
    try:
        record = json.loads((out / STAGE_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or not {"stage", "key", "files"} <= record.keys():
        return None
    return record if isinstance(record["files"], dict) else None


def entries_of(folder: Path) -> set[str]:
    """Relative paths of everything but directories, links among it, and the stage's own records."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {path.relative_to(folder).as_posix() for path in found} - {STAGE_RECORD, _KEY_FILE}


def destination(out: Path) -> Path:
    """The directory that `out` means, whole and without links: a link stays, and what it points to is written.

    Raises BuildError DISK for a link that leads to itself.
    """
    try:
        return out.resolve()
    except RuntimeError:
        raise BuildError(
            f"cannot write {out}: its links lead to each other", "choose another --out", code="DISK", where=str(out)
        ) from None


def scratch_of(out: Path) -> Path:
    """Where `out` is written before it appears."""
    return out.with_name(f".{out.name}.partial")


@contextmanager
def stage_output(out: Path, *, stage: str, key: str) -> Iterator[Path]:
    """Yield a scratch directory that becomes `out` only if the body succeeds.

    The scratch directory `.{name}.partial` lies beside `out` and outlives an interrupted run: the next run with the
    same key finds there what was written, with another key an empty directory. A finished `out` is replaced in one
    rename, with everything in it; where `out` is a link, what it points to is. Raises BuildError LOCKED when another
    process is writing the same stage, MissingToolError DISK when the disk is full, BuildError DISK when it fails.
    """
    out = destination(out)
    scratch = scratch_of(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _lock(scratch, out):
        try:
            _prepare(scratch, key)
            yield scratch
            record = {"stage": stage, "key": key, "files": _file_sizes(scratch)}
            write_text(scratch / STAGE_RECORD, json.dumps(record, indent=1, sort_keys=True) + "\n")
            _sync_tree(scratch)
            (scratch / _KEY_FILE).unlink()  # last: until then an interrupted run finds its work again
        except OSError as error:
            raise disk_error(error, out) from error
        _swap(scratch, out)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, made if need be, against other trtkit processes; the kernel lets go when this one dies.

    Raises BuildError LOCKED when another one holds it.
    """
    folder = destination(folder)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _hold(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a small text whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file whole or not at all: beside, flushed to disk, renamed. An OSError names `path`."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # _UNFINISHED knows it again
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        error.filename = str(path)  # a write that finds the disk full names no file by itself
        raise
    finally:
        beside.unlink(missing_ok=True)


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a report as JSON, whole or not at all. Raises what disk_error says."""
    try:
        write_text(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise disk_error(error, path) from error


def disk_error(error: OSError, out: Path) -> TrtkitError:
    """The error DISK for an OSError met while writing `out`: MissingToolError where room is what lacks."""
    kind, way = (
        (MissingToolError, "free space or choose another --out")
        if lacks_room(error)
        else (BuildError, "choose another --out, on a disk that may be written")
    )
    return kind(
        f"cannot write {out}: {error.strerror or error}",
        f"{way}; run the same command again, finished parts are kept",
        code="DISK",
        where=str(error.filename or out),
    )


def lacks_room(error: OSError) -> bool:
    """Whether the disk is full, for this user, or takes no larger file."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


_KEY_FILE = ".trtkit-key"
_UNFINISHED = re.compile(r"\..+\.[0-9]+\.tmp")


def _prepare(scratch: Path, key: str) -> None:
    """Keep the scratch directory of an interrupted run with the same key, else start with an empty one.

    Of what is kept, the files that a killed write_text left beside its own go: the lock is held, so nobody writes them.
    """
    key_file = scratch / _KEY_FILE
    if key_file.is_file() and key_file.read_text(encoding="utf-8") == key:
        for path in list(scratch.rglob(".*.tmp")):
            if _UNFINISHED.fullmatch(path.name) and path.is_file():
                path.unlink()
    else:
        for path in scratch.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_text(key_file, key)


def _file_sizes(folder: Path) -> dict[str, int]:
    """Relative path -> bytes of every file except the stage's own records."""
    own = {STAGE_RECORD, _KEY_FILE}
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in own)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _swap(scratch: Path, out: Path) -> None:
    """Put `scratch` in the place of `out`; at no moment is there a half-written `out`."""
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    scratch.rename(out)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _lock(scratch: Path, out: Path) -> Iterator[None]:
    """Hold an advisory lock on the scratch directory itself; the kernel drops it when this process dies."""
    while True:
        scratch.mkdir(exist_ok=True)
        descriptor = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _hold(descriptor, out)
            # Between mkdir and flock another writer may have finished and renamed the directory.
            if _is_at(descriptor, scratch):
                yield
                return
        finally:
            os.close(descriptor)


def _hold(descriptor: int, out: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BuildError(
            f"another trtkit process is writing {out}", "wait for it, or choose another --out", code="LOCKED"
        ) from None


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open directory is the one that stands at `path` now."""
    return path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())
