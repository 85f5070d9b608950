"""manifest.json of a build directory: what was built from what, with which versions and limits."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trtkit import __version__
from trtkit.artifacts import write_text
from trtkit.builds import MANIFEST, SCHEMA
from trtkit.engines.requested_spec import engine_spec
from trtkit.engines.spec import EngineSpec
from trtkit.findings import Finding
from trtkit.pipeline.launch import server_launch
from trtkit.pipeline.request import BuildRequest

_PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "numpy", "tritonclient", "nvidia-pytriton")


@dataclass(frozen=True)
class StageResult:
    """How one stage went; bytes is the size of what stands in its directory."""

    stage: str
    skipped: bool
    seconds: float
    bytes: int


def manifest_document(
    request: BuildRequest,
    overrides: Sequence[str],
    ignored: Sequence[str],
    findings: Sequence[Finding],
    results: Sequence[StageResult],
) -> dict[str, Any]:
    """The manifest as a JSON document."""
    config = request.config
    return {
        "schema": SCHEMA,
        "name": config.name,
        "backend": config.backend,
        "tensorrt_llm": config.tensorrt_llm,
        "sm": request.sm,
        "versions": {"trtkit": __version__, **_installed(_PACKAGES)},
        "config": config.model_dump(mode="json"),
        "overrides": list(overrides),
        "ignored": list(ignored),
        "findings": [finding.as_dict() for finding in findings],
        "inputs": {role: source.as_dict() for role, source in request.inputs.items()},
        "limits": {role: _limits(engine_spec(role, config, request.sm)) for role in config.models},
        "stages": [asdict(result) for result in results],
        **_launch(request),
    }


def _launch(request: BuildRequest) -> dict[str, Any]:
    """How a server with GPUs is started, why so, and the image it is for, by tag and digest; nothing for the
    reference backend."""
    launch = server_launch(request)
    if launch is None:
        return {}
    image = {"image": request.release.container, "pinned_image": request.image}
    return {"launch": {"mode": launch.mode, "reason": launch.reason, **image}}


def write_manifest(out: Path, document: dict[str, Any]) -> Path:
    """Write BUILD/manifest.json whole or not at all."""
    path = out / MANIFEST
    write_text(path, json.dumps(document, indent=2) + "\n")
    return path


def known_files(out: Path, role: str) -> Mapping[str, Mapping[str, Any]]:
    """The `files` record of the build that stands in `out`, or nothing: it only saves hashing a file again."""
    try:
        document = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        files: Mapping[str, Mapping[str, Any]] = document["inputs"][role]["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return files


def _limits(spec: EngineSpec) -> dict[str, Any]:
    """The effective limits: what was asked, and what the builder makes of it."""
    return {
        **asdict(spec),
        "built_max_seq_len": spec.built_max_seq_len,
        "max_num_tokens": spec.max_num_tokens,
    }


def _installed(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
