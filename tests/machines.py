"""Machines for tests, as the doctor finds them: a laptop, and a GPU box in a container; any fact may be changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from trtkit.doctor import Machine
from trtkit.doctor.facts import GpuDevice, GpuDriver, Limits, Memory, SharedMemory, TritonInstall

GIB = 1 << 30
WHEEL = TritonInstall("wheel", Path("bin/tritonserver"), "2.51.0", Path("stub"), Path("libpython3.11.so.1.0"), False)
CONTAINER = TritonInstall("container", Path("/opt/tritonserver/bin/tritonserver"), "2.67.0", None, None, True)
LAPTOP = Machine(
    python="3.11.7",
    system="Linux",
    architecture="x86_64",
    libc="glibc 2.36",
    cpus=8,
    packages={"numpy": "1.26.4", "torch": "2.13.0", "tensorrt-llm": None},
    gpu=None,
    triton=WHEEL,
    trtllm_build=None,
    memory=Memory(32 * GIB, 24 * GIB, 32 * GIB, 1),
    shared_memory=SharedMemory(16 * GIB, 16 * GIB),
    limits=Limits(65536, None, None),
    container=None,
    free_disk_bytes=500 * GIB,
)
H100 = GpuDevice("NVIDIA H100 80GB HBM3", 81559 << 20, 90)
L40S = GpuDevice("NVIDIA L40S", 46068 << 20, 89)


def laptop(**facts: Any) -> Machine:
    """A machine without a GPU on which the reference backend can be served."""
    return replace(LAPTOP, **facts)


def gpu_box(*devices: GpuDevice, version: str | None = "1.2.1", **facts: Any) -> Machine:
    """NVIDIA's image with TensorRT-LLM on a machine with these GPUs (one H100 when none are named)."""
    inside = {
        "python": "3.12.3",
        "packages": {"numpy": "1.26.4", "torch": "2.9.1", "tensorrt-llm": version},
        "gpu": GpuDriver("590.44.01", "13.1", devices or (H100,)),
        "triton": CONTAINER,
        "trtllm_build": Path("/usr/local/bin/trtllm-build"),
        "container": "docker",
    }
    return replace(LAPTOP, **inside | facts)
