"""Refuses builds that trtkit's own server does not run: those for GPUs. Knows the manifest, starts nothing."""

from pathlib import Path

from trtkit.builds import MANIFEST, open_build
from trtkit.errors import MissingToolError

_REFERENCE = "reference"
_START_SCRIPT = Path("launch") / "serve.sh"


def refuse_gpu_build(build: Path) -> None:
    """Raise MissingToolError when `build` is for TensorRT-LLM, which only NVIDIA's Triton images run.

    A folder without a manifest passes: what it lacks is found when it is served.
    """
    if not (build / MANIFEST).is_file():
        return
    backend = open_build(build).manifest.get("backend", _REFERENCE)
    if backend != _REFERENCE:
        raise MissingToolError(
            f"{build} is for backend {backend}, which runs in NVIDIA's Triton with TensorRT-LLM, not in trtkit's own",
            f"serve it with --container, or start it with `sh {build / _START_SCRIPT}` and name the server as "
            "grpc://host:port; or build with --backend reference to serve on this machine",
            code="SERVE-BACKEND",
            where=str(build / MANIFEST),
        )
