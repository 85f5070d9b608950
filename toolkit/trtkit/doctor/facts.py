"""The records of what a machine has. Knows no probe and draws no conclusion."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GpuDevice:
    """One NVIDIA GPU as its driver describes it; sm is major * 10 + minor of the compute capability (89 is 8.9)."""

    name: str
    memory_bytes: int
    sm: int


@dataclass(frozen=True)
class GpuDriver:
    """The NVIDIA driver; cuda is the newest CUDA version it can run, None when nvidia-smi did not say."""

    version: str
    cuda: str | None
    devices: tuple[GpuDevice, ...]


@dataclass(frozen=True)
class TritonInstall:
    """One Triton server that can be started.

    kind "wheel" is nvidia-pytriton's, "container" the one of NVIDIA's images. stub is the Python stub for the running
    Python and libpython the shared library that it loads; a container brings its own of both, so there None is fine.
    has_trtllm_backend says whether NVIDIA's own `tensorrtllm` backend lies beside it. stub_python: the Python that the
    stub was built for ("3.12"), None when it does not say.
    """

    kind: str
    binary: Path
    version: str | None
    stub: Path | None
    libpython: Path | None
    has_trtllm_backend: bool
    stub_python: str | None = None


@dataclass(frozen=True)
class Memory:
    """Host memory. limit_bytes is what this process may use: the machine's memory, or less in a limited cgroup."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int
    numa_nodes: int


@dataclass(frozen=True)
class SharedMemory:
    """/dev/shm; Triton's Python models exchange tensors through it."""

    size_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Limits:
    """Soft resource limits of this process; None is unlimited."""

    open_files: int | None
    locked_memory_bytes: int | None
    stack_bytes: int | None


@dataclass(frozen=True)
class MachineFacts:
    """Everything the probes found.

    packages maps the distributions trtkit may use to their installed version, None for absent ones. container names
    the runtime this process lives in, None outside of one. free_disk_bytes is that of the working directory.
    cuda_toolkit: version of the CUDA toolkit in /usr/local/cuda, None without one.
    """

    python: str
    system: str
    architecture: str
    libc: str
    cpus: int
    packages: Mapping[str, str | None]
    gpu: GpuDriver | None
    triton: TritonInstall | None
    trtllm_build: Path | None
    memory: Memory
    shared_memory: SharedMemory | None
    limits: Limits
    container: str | None
    free_disk_bytes: int
    cuda_toolkit: str | None = None

    @property
    def tensorrt_llm(self) -> str | None:
        """Version of the installed TensorRT-LLM."""
        return self.packages.get("tensorrt-llm")

    @property
    def python_minor(self) -> str:
        """ "3.11" of "3.11.7"."""
        return ".".join(self.python.split(".")[:2])
