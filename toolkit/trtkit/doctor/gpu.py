"""Asks the NVIDIA driver for its GPUs through nvidia-smi, and the CUDA toolkit for its version. Loads no library."""

import json
import re
import subprocess
from pathlib import Path

from trtkit.doctor.facts import GpuDevice, GpuDriver

_MIB = 1 << 20
_QUERY = ["--query-gpu=name,memory.total,compute_cap,driver_version", "--format=csv,noheader,nounits"]
_TIMEOUT_S = 15


def read_gpu(nvidia_smi: Path | None, root: Path) -> GpuDriver | None:
    """The driver and its GPUs, or None without a working driver.

    Without nvidia-smi the driver's own file still tells its version; the GPUs then stay unnamed and are not listed.
    """
    answer = _ask(nvidia_smi, _QUERY) if nvidia_smi else ""
    devices, version = parse_query(answer)
    if version is not None:
        assert nvidia_smi is not None
        return GpuDriver(version, parse_cuda_version(_ask(nvidia_smi, [])), devices)
    version = _version_file(root)
    return GpuDriver(version, None, ()) if version else None


def parse_query(answer: str) -> tuple[tuple[GpuDevice, ...], str | None]:
    """The lines of `nvidia-smi --query-gpu`: the GPUs and the driver's version (None when no line is a GPU's)."""
    devices, version = [], None
    for line in answer.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4 or not re.fullmatch(r"\d+\.\d+", cells[2]):
            continue
        major, minor = cells[2].split(".")
        # Jetson and some MIG set-ups answer "[N/A]" for the memory, which the GPU shares with the host.
        memory_bytes = int(cells[1]) * _MIB if cells[1].isdigit() else 0
        devices.append(GpuDevice(cells[0], memory_bytes, int(major) * 10 + int(minor)))
        version = cells[3]
    return tuple(devices), version


def parse_cuda_version(answer: str) -> str | None:
    """ "12.6" of the header that nvidia-smi prints, or None."""
    found = re.search(r"CUDA Version:\s*(\d+\.\d+)", answer)
    return found.group(1) if found else None


def read_cuda_toolkit(root: Path) -> str | None:
    """The version of the toolkit in /usr/local/cuda, which containers bring beside the driver's; None without one."""
    try:
        document = json.loads((root / "usr/local/cuda/version.json").read_text(encoding="utf-8"))
        return str(document["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ask(program: Path, arguments: list[str]) -> str:
    try:
        done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _version_file(root: Path) -> str | None:
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found.group(1) if found else None
