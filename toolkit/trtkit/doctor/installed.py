"""Finds installed packages and Triton servers from their files. Imports none of them."""

import importlib.metadata
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from trtkit.doctor.facts import TritonInstall

# Distributions that decide what works, by the extra of trtkit that brings them.
PACKAGES = {
    "numpy": "base",
    "pydantic": "base",
    "safetensors": "base",
    "tokenizers": "base",
    "tritonclient": "base",
    "protobuf": "base",
    "torch": "reference",
    "transformers": "reference",
    "gguf": "reference",
    "nvidia-pytriton": "serve",
    "psutil": "serve",
    "matplotlib": "plot",
    "huggingface_hub": "hub",
    "tensorrt-llm": "gpu",
    "tensorrt": "gpu",
    "nvidia-modelopt": "gpu",
}
# The Triton inside each nvidia-pytriton wheel; the binary has no --version.
_WHEEL_TRITON = {"0.7.0": "2.51.0"}
_CONTAINER_HOME = "opt/tritonserver"
_LIBPYTHON = re.compile(rb"libpython(3\.\d+)\.so")


def installed_packages() -> dict[str, str | None]:
    """Installed version of every distribution in PACKAGES, from its metadata."""
    return {name: _version(name) for name in PACKAGES}


def find_triton(packages: Mapping[str, str | None], root: Path) -> TritonInstall | None:
    """The server of an NVIDIA container if there is one, else the one inside the nvidia-pytriton wheel."""
    return _container_triton(root) or _wheel_triton(packages)


def stub_of(server_home: Path, python_minor: str) -> Path | None:
    """The Python stub for this Python in the wheel's server folder, or None when the wheel has none for it."""
    stub = server_home / "python_backend_stubs" / python_minor / "triton_python_backend_stub"
    return stub if stub.is_file() else None


def stub_python(stub: Path | None) -> str | None:
    """The Python that a stub was linked with, by the name of the library that it loads; None when it names none."""
    try:
        found = _LIBPYTHON.search(stub.read_bytes()) if stub is not None else None
    except OSError:
        return None
    return found.group(1).decode() if found else None


def find_libpython(folders: Sequence[Path], python_minor: str) -> Path | None:
    """The shared library of Python that the stub loads, in the first folder that has it."""
    name = f"libpython{python_minor}.so.1.0"
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def _wheel_triton(packages: Mapping[str, str | None]) -> TritonInstall | None:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        return None
    home = Path(next(iter(spec.submodule_search_locations))) / "tritonserver"
    binary = home / "bin" / "tritonserver"
    if not binary.is_file():
        return None
    python_minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    return TritonInstall(
        kind="wheel",
        binary=binary,
        version=_WHEEL_TRITON.get(packages.get("nvidia-pytriton") or ""),
        stub=stub_of(home, python_minor),
        libpython=find_libpython(_library_folders(), python_minor),
        has_trtllm_backend=False,
        stub_python=stub_python(stub_of(home, python_minor)),
    )


def _container_triton(root: Path) -> TritonInstall | None:
    home = root / _CONTAINER_HOME
    binary = home / "bin" / "tritonserver"
    if not binary.is_file():
        return None
    version_file = home / "TRITON_VERSION"
    version = version_file.read_text(encoding="utf-8").strip() if version_file.is_file() else None
    backend = home / "backends" / "tensorrtllm"
    has_backend = (backend / "libtriton_tensorrtllm.so").is_file()
    stub = home / "backends" / "python" / "triton_python_backend_stub"
    return TritonInstall("container", binary, version, None, None, has_backend, stub_python(stub))


def _library_folders() -> list[Path]:
    """Where the loader may find libpython: its build's LIBDIR, then the system's folders."""
    libdir, multiarch = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("MULTIARCH")
    system = [f"/usr/lib/{multiarch}", f"/lib/{multiarch}"] if multiarch else []
    return [Path(folder) for folder in (libdir, *system, "/usr/lib64", "/usr/lib") if folder]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
