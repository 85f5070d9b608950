"""From the checkpoint named in the YAML to a folder on this disk. Knows folders, the cache and hub ids, no contents."""

import re
from pathlib import Path

from trtkit.errors import CheckpointError, MissingToolError

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_DESCRIPTION = ("*.json", "*.jinja", "tokenizer.model")
_WEIGHTS = "*.safetensors"
# It names weight files, which a description has none of.
_INDEX = "*.index.json"
_HUB_TIMEOUT_S = 10


def cache_folder(cache: Path, name: str, revision: str | None = None) -> Path:
    """Where the checkpoint with this hub id lies in trtkit's cache."""
    suffix = f"@{revision}" if revision else ""
    return cache / "checkpoints" / f"{name.replace('/', '--')}{suffix}"


def find_checkpoint(name: str, cache: Path, revision: str | None = None) -> Path | None:
    """The folder of a checkpoint that is on this disk already: a path, or a hub id in the cache; else None."""
    folder = Path(name).expanduser()
    if folder.exists():
        return folder
    cached = cache_folder(cache, name, revision)
    return cached if (cached / "config.json").is_file() else None


def resolve_checkpoint(name: str, cache: Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """The folder of a checkpoint, downloaded from the hub into the cache when it is an id that is not there yet.

    Without weights, config.json and tokenizer suffice: what is downloaded then lies apart from whole checkpoints.
    Raises CheckpointError for a path that does not exist and an id that the hub does not give, MissingToolError when
    the hub is needed and huggingface_hub is not installed.
    """
    found = find_checkpoint(name, cache, revision)
    if found is not None:
        return found
    if not _HUB_ID.match(name):
        raise CheckpointError(
            f"no folder {name}", "give a checkpoint folder, or a hub id such as org/model", code="CKPT-FOLDER"
        )
    if name.startswith("trtkit/"):
        raise CheckpointError(f"{name} is not prepared yet", "run `trtkit demo` once", code="CKPT-DEMO")
    if weights:
        return download(name, cache_folder(cache, name, revision), revision)
    described = cache_folder(cache / "described", name, revision)
    return described if described.is_dir() else download(name, described, revision, weights=False)


def download(name: str, out: Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Fetch safetensors, configuration and tokenizer of a hub id into `out`; an interrupted download continues.

    Without weights, only configuration and tokenizer. Raises CheckpointError when the hub cannot be reached or does
    not know the id.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise MissingToolError(
            f"{name} is not on this disk, and huggingface_hub is not installed",
            "pip install 'trtkit[hub]', or give a folder",
            code="HUB-MISSING",
        ) from None
    # config.json is what marks a cached checkpoint as complete, so it must not appear before the weights.
    partial = out.with_name(f".{out.name}.partial")
    try:
        snapshot_download(
            name,
            revision=revision,
            local_dir=partial,
            allow_patterns=[*_DESCRIPTION, *([_WEIGHTS] if weights else [])],
            ignore_patterns=None if weights else _INDEX,
            etag_timeout=_HUB_TIMEOUT_S,
        )
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise CheckpointError(
            f"{name} cannot be fetched from the hub: {str(error).splitlines()[0]}",
            "check the id, the network and the access rights (huggingface-cli login), or give a folder",
            code="HUB",
        ) from None
    partial.rename(out)
    return out
