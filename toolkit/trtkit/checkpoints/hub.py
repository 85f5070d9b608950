"""Fetches a checkpoint, or its description, from the Hugging Face hub. The only user of huggingface_hub."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtkit.artifacts import disk_error, lacks_room, write_text
from trtkit.errors import CheckpointError, MissingToolError

HUB_FILES = "hub_files.json"
"""Beside a description: the commit it is of, and the hub's digest of every file, weights included."""
_DESCRIPTION = ("*.json", "*.jinja", "tokenizer.model")
_WEIGHTS, _PICKLES = "*.safetensors", "*.bin"
# It names weight files, which a description has none of.
_INDEX = "*.index.json"
_TIMEOUT_S = 10


def download(name: str, out: Path, revision: str | None = None, *, weights: bool = True, pickles: bool = False) -> Path:
    """Fetch safetensors, configuration and tokenizer of a hub id into `out`; an interrupted download continues.

    Without weights, only configuration and tokenizer, and HUB_FILES that stands for the weights by their digests.
    pickles: take them where the repository has no safetensors. Raises CheckpointError HUB when the hub cannot be
    reached or does not know the id, CKPT-PICKLE when it has no safetensors for it, MissingToolError DISK when the
    disk is full.
    """
    try:
        from huggingface_hub import HfApi, snapshot_download
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
        listing = None if weights else _listing(HfApi(), name, revision)
        fetch = _fetcher(snapshot_download, name, listing["revision"] if listing else revision, partial)
        fetch([*_DESCRIPTION, *([_WEIGHTS] if weights else [])], None if weights else _INDEX)
        if weights and pickles and not _holds(partial, _WEIGHTS):
            fetch([_PICKLES], None)
    except (OSError, ValueError, _http_error(HfHubHTTPError)) as error:
        if isinstance(error, OSError) and lacks_room(error):
            raise disk_error(error, partial) from error
        raise CheckpointError(
            f"{name} cannot be fetched from the hub: {str(error).splitlines()[0]}",
            "check the id, the network and the access rights (huggingface-cli login), or give a folder",
            code="HUB",
        ) from None
    if weights and not pickles and not _holds(partial, _WEIGHTS):
        raise CheckpointError(
            f"{name} has no safetensors on the hub",
            "take a revision that has them, or pickles with --allow-pickle (read with weights_only)",
            code="CKPT-PICKLE",
        )
    if listing is not None:
        write_text(partial / HUB_FILES, json.dumps(listing, indent=1) + "\n")
    partial.rename(out)
    return out


def _fetcher(
    snapshot: Callable[..., Any], name: str, revision: str | None, folder: Path
) -> Callable[[list[str], str | None], None]:
    """The function that fetches the files of (allowed, ignored) patterns into `folder`."""

    def fetch(allowed: list[str], ignored: str | None) -> None:
        snapshot(
            name,
            revision=revision,
            local_dir=folder,
            allow_patterns=allowed,
            ignore_patterns=ignored,
            etag_timeout=_TIMEOUT_S,
        )

    return fetch


def _holds(folder: Path, pattern: str) -> bool:
    return any(folder.glob(pattern))


def hub_commit(folder: Path) -> str | None:
    """The commit that a description is of; None for a checkpoint that did not come so."""
    path = folder / HUB_FILES
    if not path.is_file():
        return None
    commit: str = json.loads(path.read_text(encoding="utf-8"))["revision"]
    return commit


def _http_error(hub_error: type[Exception]) -> type[Exception]:
    """The base of all errors of the HTTP library that this huggingface_hub uses (httpx, or requests before 1.0)."""
    return next((base for base in hub_error.__mro__ if base.__name__ == "HTTPError"), hub_error)


def _listing(api: Any, name: str, revision: str | None) -> dict[str, Any]:
    """Commit and files of a repository: SHA-256 of large files, git's blob id of small ones."""
    info = api.model_info(name, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
    files = {
        file.rfilename: {"bytes": file.size, "digest": file.lfs.sha256 if file.lfs else file.blob_id}
        for file in info.siblings
    }
    return {"id": name, "revision": info.sha, "files": dict(sorted(files.items()))}
