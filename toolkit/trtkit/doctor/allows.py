"""What a machine's facts allow: the backends it can build, run and serve, each with reason and fix. Probes nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trtkit.doctor.facts import MachineFacts, TritonInstall

# TensorRT-LLM releases with the engine flow that trtkit writes for, and the first with a stable LLM API
# (release notes of 1.0.0; the engine flow left after 1.2.1).
ENGINE_RANGE = ((0, 17), (1, 2))
LLMAPI_FROM = (1, 0)
MIN_ENGINE_SM = 80
# pybind11 in the stub of nvidia-pytriton reads numpy 2 arrays wrongly, without an error; 3.12 hangs in BLS calls.
STUB_PYTHONS = ("3.10", "3.11")
# One MiB per model instance at start, and room to grow for batches of prompts.
MIN_SHARED_MEMORY_BYTES = 64 << 20


@dataclass(frozen=True)
class Allowance:
    """Whether one thing is possible here; reason says why or why not, fix what would make it possible."""

    possible: bool
    reason: str
    fix: str = ""


def allowances(facts: MachineFacts) -> dict[str, Allowance]:
    """The four things a machine may be used for, by name."""
    rules: Mapping[str, Callable[[MachineFacts], Allowance]] = {
        "reference": _reference,
        "serve": _serve,
        "engine": _engine,
        "llmapi": _llmapi,
    }
    return {name: rule(facts) for name, rule in rules.items()}


def release_of(version: str) -> tuple[int, int]:
    """(1, 2) of "1.2.1" or "1.2.0rc3"; (0, 0) when the text is no version."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return (0, 0)
    return int(parts[0]), int(parts[1])


def _reference(facts: MachineFacts) -> Allowance:
    torch = facts.packages.get("torch")
    if torch is None:
        return Allowance(False, "torch is not installed", 'pip install "trtkit[reference]"')
    where = f"{facts.cpus} CPU cores" + (f" and {len(facts.gpu.devices)} GPU" if facts.gpu else "")
    return Allowance(True, f"torch {torch} on {where}")


def _serve(facts: MachineFacts) -> Allowance:
    triton = facts.triton
    if triton is None:
        return Allowance(
            False,
            "no Triton server: neither nvidia-pytriton nor /opt/tritonserver is there",
            'pip install "trtkit[serve]" on Python 3.11, or use an NVIDIA tritonserver image',
        )
    obstacle = (_wheel_obstacle(facts, triton) if triton.kind == "wheel" else None) or _memory_obstacle(facts)
    if obstacle is not None:
        return obstacle
    return Allowance(True, f"Triton {triton.version or 'of unknown version'} ({triton.kind}) at {triton.binary}")


def _wheel_obstacle(facts: MachineFacts, triton: TritonInstall) -> Allowance | None:
    numpy = facts.packages.get("numpy") or "0"
    if facts.python_minor not in STUB_PYTHONS or triton.stub is None:
        return Allowance(
            False,
            f"the Triton wheel's Python stub does not work with Python {facts.python_minor}",
            "use a virtual environment with Python 3.11",
        )
    if release_of(numpy)[0] >= 2:
        return Allowance(
            False, f"numpy {numpy}: the wheel's stub reads wrong values from numpy 2 arrays", 'pip install "numpy<2"'
        )
    if triton.libpython is None:
        return Allowance(
            False,
            f"libpython{facts.python_minor}.so.1.0 is missing, and the Python stub loads it",
            f"install it, on Debian or Ubuntu: apt-get install libpython{facts.python_minor}",
        )
    return None


def _memory_obstacle(facts: MachineFacts) -> Allowance | None:
    shared = facts.shared_memory
    if shared is not None and shared.size_bytes >= MIN_SHARED_MEMORY_BYTES:
        return None
    size = f"has {shared.size_bytes >> 20} MiB" if shared else "is missing"
    return Allowance(
        False, f"/dev/shm {size}; Triton's Python models need at least 64 MiB", "start the container with --shm-size=1g"
    )


def _engine(facts: MachineFacts) -> Allowance:
    obstacle = _gpu_obstacle(facts) or _tensorrt_llm_obstacle(facts)
    if obstacle is not None:
        return obstacle
    version = facts.tensorrt_llm or ""
    low, high = ENGINE_RANGE
    if not low <= release_of(version) <= high:
        return Allowance(
            False,
            f"TensorRT-LLM {version} has no engine flow that trtkit writes for",
            "use TensorRT-LLM 0.17 to 1.2.1, or backend: llmapi from 1.0 on",
        )
    if facts.trtllm_build is None:
        return Allowance(
            False, "trtllm-build is not on PATH", "activate the environment that TensorRT-LLM is installed in"
        )
    return Allowance(True, f"TensorRT-LLM {version} with {_gpu_names(facts)}")


def _llmapi(facts: MachineFacts) -> Allowance:
    obstacle = _gpu_obstacle(facts) or _tensorrt_llm_obstacle(facts)
    if obstacle is not None:
        return obstacle
    version = facts.tensorrt_llm or ""
    if release_of(version) < LLMAPI_FROM:
        return Allowance(
            False, f"TensorRT-LLM {version} is older than the stable LLM API", "use TensorRT-LLM 1.0 or newer"
        )
    return Allowance(True, f"TensorRT-LLM {version} with {_gpu_names(facts)}")


def _gpu_obstacle(facts: MachineFacts) -> Allowance | None:
    if facts.gpu is None:
        return Allowance(False, "no NVIDIA driver", "run on a machine with an NVIDIA GPU and its driver")
    if not facts.gpu.devices:
        return Allowance(
            False,
            f"driver {facts.gpu.version} is there, but nvidia-smi names no GPU",
            "start the container with --gpus all, or repair the driver",
        )
    newest = max(device.sm for device in facts.gpu.devices)
    if newest < MIN_ENGINE_SM:
        return Allowance(False, f"{_gpu_names(facts)} is SM {newest}", "use a GPU of SM 80 (A100, A10) or newer")
    return None


def _tensorrt_llm_obstacle(facts: MachineFacts) -> Allowance | None:
    if facts.tensorrt_llm is not None:
        return None
    return Allowance(
        False,
        "TensorRT-LLM is not installed",
        'use an NVIDIA image tritonserver:<tag>-trtllm-python-py3, or pip install "trtkit[gpu]" where NVIDIA\'s '
        "package index is reachable",
    )


def _gpu_names(facts: MachineFacts) -> str:
    names = [device.name for device in facts.gpu.devices] if facts.gpu else []
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
