"""From the checkpoint named in the YAML to a folder on this disk. Knows folders, the cache and hub ids, no contents."""

import re
from pathlib import Path

from trtkit.checkpoints.hub import download
from trtkit.errors import CheckpointError

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")


def is_hub_id(name: str) -> bool:
    """Whether the hub may know a checkpoint by this name; the name of a file that is here means that file."""
    return _HUB_ID.match(name) is not None and not expanded(name).is_file()


def is_of_the_demo(name: str) -> bool:
    """Whether `trtkit demo` makes the checkpoint of this name; the hub knows none of its."""
    return name.startswith("trtkit/")


def expanded(name: str) -> Path:
    """The path with ~ filled in; one of a user that this machine does not know stays as it is."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def cache_folder(cache: Path, name: str, revision: str | None = None) -> Path:
    """Where the checkpoint with this hub id lies in trtkit's cache."""
    suffix = f"@{revision.replace('/', '--')}" if revision else ""
    return cache / "checkpoints" / f"{name.replace('/', '--')}{suffix}"


def find_checkpoint(name: str, cache: Path, revision: str | None = None) -> Path | None:
    """The folder of a checkpoint that is on this disk already: a path, or a hub id in the cache; else None."""
    folder = expanded(name)
    if folder.exists():
        return folder
    cached = cache_folder(cache, name, revision)
    return cached if (cached / "config.json").is_file() else None


def resolve_checkpoint(
    name: str, cache: Path, revision: str | None = None, *, weights: bool = True, pickles: bool = False
) -> Path:
    """The folder of a checkpoint, downloaded from the hub into the cache when it is an id that is not there yet.

    Without weights, config.json and tokenizer suffice: what is downloaded then lies apart from whole checkpoints.
    pickles: fetch them where the hub has no safetensors.
    Raises CheckpointError for a path that does not exist and an id that the hub does not give, MissingToolError when
    the hub is needed and huggingface_hub is not installed.
    """
    found = find_checkpoint(name, cache, revision)
    if found is not None:
        return found
    if not is_hub_id(name):
        raise CheckpointError(
            f"no folder {name}", "give a checkpoint folder, or a hub id such as org/model", code="CKPT-FOLDER"
        )
    if is_of_the_demo(name):
        raise CheckpointError(f"{name} is not prepared yet", "run `trtkit demo` once", code="CKPT-DEMO")
    if weights:
        return download(name, cache_folder(cache, name, revision), revision, pickles=pickles)
    described = cache_folder(cache / "described", name, revision)
    return described if described.is_dir() else download(name, described, revision, weights=False)
