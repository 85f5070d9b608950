"""Fetches a checkpoint, or its description, from the Hugging Face hub. The only user of huggingface_hub."""

import json
from pathlib import Path
from typing import Any

from trtkit.errors import CheckpointError, MissingToolError

HUB_FILES = "hub_files.json"
"""Beside a description: the commit it is of, and the hub's digest of every file, weights included."""
_DESCRIPTION = ("*.json", "*.jinja", "tokenizer.model")
_WEIGHTS = "*.safetensors"
# It names weight files, which a description has none of.
_INDEX = "*.index.json"
_TIMEOUT_S = 10


def download(name: str, out: Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Fetch safetensors, configuration and tokenizer of a hub id into `out`; an interrupted download continues.

    Without weights, only configuration and tokenizer, and HUB_FILES that stands for the weights by their digests.
    Raises CheckpointError when the hub cannot be reached or does not know the id.
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
        snapshot_download(
            name,
            revision=listing["revision"] if listing else revision,
            local_dir=partial,
            allow_patterns=[*_DESCRIPTION, *([_WEIGHTS] if weights else [])],
            ignore_patterns=None if weights else _INDEX,
            etag_timeout=_TIMEOUT_S,
        )
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise CheckpointError(
            f"{name} cannot be fetched from the hub: {str(error).splitlines()[0]}",
            "check the id, the network and the access rights (huggingface-cli login), or give a folder",
            code="HUB",
        ) from None
    if listing is not None:
        (partial / HUB_FILES).write_text(json.dumps(listing, indent=1) + "\n", encoding="utf-8")
    partial.rename(out)
    return out


def hub_commit(folder: Path) -> str | None:
    """The commit that a description is of; None for a checkpoint that did not come so."""
    path = folder / HUB_FILES
    if not path.is_file():
        return None
    commit: str = json.loads(path.read_text(encoding="utf-8"))["revision"]
    return commit


def _listing(api: Any, name: str, revision: str | None) -> dict[str, Any]:
    """Commit and files of a repository: SHA-256 of large files, git's blob id of small ones."""
    info = api.model_info(name, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
    files = {
        file.rfilename: {"bytes": file.size, "digest": file.lfs.sha256 if file.lfs else file.blob_id}
        for file in info.siblings
    }
    return {"id": name, "revision": info.sha, "files": dict(sorted(files.items()))}
