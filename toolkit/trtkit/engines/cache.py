"""Built engines by content: the key of what decides them, and a folder of them. Knows files, builds nothing."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from trtkit.artifacts import is_complete, key_of, stage_output
from trtkit.engines.build_args import build_decisions
from trtkit.engines.release import Release
from trtkit.engines.spec import EngineSpec


def engine_key(checkpoint: str, spec: EngineSpec, release: Release, sm: int | None) -> str:
    """The key of an engine. checkpoint: the digest of the converted checkpoint's content.

    An engine loads only in the release, with the TensorRT, and on the SM that built it, so all of them enter.
    """
    return key_of(
        {
            "checkpoint": checkpoint,
            "command": build_decisions(spec, release),
            "tensorrt_llm": release.version,
            "tensorrt": release.tensorrt,
            "sm": sm,
        }
    )


def fetch(cache: Path, key: str, out: Path) -> bool:
    """Put the cached engine with this key into the directory `out`; False when there is none, or a damaged one."""
    entry = cache / key
    if not is_complete(entry, key):
        return False
    _link_files(entry, out)
    return True


def store(cache: Path, key: str, built: Path) -> None:
    """Keep a finished engine, unless another build has kept the same one.

    Files are hard links where the file system allows it, so they cost no space twice. Raises BuildError LOCKED while
    another build is keeping it, MissingToolError DISK on a full disk, OSError for a cache that cannot be written.
    """
    if is_complete(cache / key, key):
        return
    with stage_output(cache / key, stage="engine cache", key=key) as scratch:
        _link_files(built, scratch)


@dataclass(frozen=True)
class CacheSize:
    """What the cache of engines holds; bytes counts the files, which builds may share by links."""

    folder: Path
    num_engines: int
    bytes: int


def cache_size(cache: Path) -> CacheSize:
    """The size of a folder of built engines, its timing caches included; 0 of a folder that is not there."""
    sizes = [path.stat().st_size for path in cache.rglob("*") if path.is_file()]
    return CacheSize(cache, sum(1 for _ in cache.glob("*/config.json")), sum(sizes))


def timing_cache(cache: Path, release: Release, sm: int | None) -> Path:
    """TensorRT's timing cache for this release and GPU, shared by all builds."""
    return cache / "timing" / f"{release.version}-sm{sm if sm is not None else 'unknown'}.cache"


def _link_files(source: Path, out: Path) -> None:
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith(".trtkit-"):
            target = out / path.name
            target.unlink(missing_ok=True)
            try:
                os.link(path, target)
            except OSError:
                shutil.copyfile(path, target)
