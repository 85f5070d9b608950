"""Where the Triton binary for CPUs lies and whether this Python can serve with it. Starts nothing."""

import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from trtkit.errors import MissingToolError

SHM = Path("/dev/shm")
# Triton's stub is built for these; 3.12 hangs under BLS and 3.13 has no numpy below 2 (docs/serving.md).
SUPPORTED_PYTHONS = ((3, 10), (3, 11))
_SHM_NEEDED_BYTES = 64 << 20
_INSTALL = "pip install 'trtkit[serve]' in a Python 3.11 environment"


@dataclass(frozen=True)
class TritonInstallation:
    """The pieces of the wheel nvidia-pytriton that a server is put together from.

    library_path has the directories that the binary and the stub need on LD_LIBRARY_PATH; python_bin is the directory
    of the interpreter whose packages the models import.
    """

    version: str
    binary: Path
    python_backend: Path
    stub: Path
    library_path: tuple[Path, ...]
    python_bin: Path


def find_installation() -> TritonInstallation:
    """Locate nvidia-pytriton's Triton and check this Python, numpy and /dev/shm.

    A wrong numpy is refused here because it makes the stub read wrong input values without an error.
    Raises MissingToolError.
    """
    refuse_python(sys.version_info[:2])
    refuse_numpy(importlib.metadata.version("numpy"))
    refuse_small_shm(_free_bytes(SHM))
    root = _wheel_root()
    version = importlib.metadata.version("nvidia-pytriton")
    triton = root / "pytriton" / "tritonserver"
    name = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = TritonInstallation(
        version=version,
        binary=triton / "bin" / "tritonserver",
        python_backend=triton / "backends" / "python",
        stub=triton / "python_backend_stubs" / name / "triton_python_backend_stub",
        library_path=(root / "nvidia_pytriton.libs", Path(str(sysconfig.get_config_var("LIBDIR")))),
        python_bin=Path(sys.executable).parent,
    )
    for part in (found.binary, found.python_backend, found.stub):
        if not part.exists():
            raise MissingToolError(
                f"nvidia-pytriton {version} is installed, but {part.name} is missing from it",
                "reinstall it: pip install --force-reinstall --no-deps 'nvidia-pytriton>=0.7.0,<0.8'",
                code="TRITON-BROKEN",
                where=str(part),
            )
    return found


def _wheel_root() -> Path:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise MissingToolError(
            "no Triton server on this machine: the package nvidia-pytriton is not installed",
            _INSTALL,
            code="TRITON-MISSING",
        )
    return Path(spec.origin).parents[1]


def refuse_python(version: tuple[int, int]) -> None:
    """Raise MissingToolError for a Python that Triton's stub does not run under."""
    if version not in SUPPORTED_PYTHONS:
        raise MissingToolError(
            f"Triton's Python models do not run under Python {version[0]}.{version[1]}",
            "use Python 3.11 (3.10 works too)",
            code="TRITON-PYTHON",
        )


def refuse_numpy(version: str) -> None:
    """Raise MissingToolError for a numpy whose arrays the stub misreads."""
    if int(version.split(".")[0]) >= 2:
        raise MissingToolError(
            f"numpy {version} makes Triton's Python stub read wrong input values without any error",
            "pip install 'numpy<2'",
            code="TRITON-NUMPY",
        )


def refuse_small_shm(free_bytes: int) -> None:
    """Triton maps a growing region per Python model. Raises MissingToolError when /dev/shm cannot hold them."""
    if free_bytes < _SHM_NEEDED_BYTES:
        raise MissingToolError(
            f"{SHM} has {free_bytes >> 20} MiB free; the server needs {_SHM_NEEDED_BYTES >> 20} MiB",
            "free it, or start the container with --shm-size=1g",
            code="TRITON-SHM",
        )


def _free_bytes(folder: Path) -> int:
    try:
        stat = os.statvfs(folder)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize
