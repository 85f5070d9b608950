"""What a machine may be used for follows from its facts, with a reason and a fix when it may not."""

from pathlib import Path

import pytest
from machines import CONTAINER, H100, WHEEL, gpu_box, laptop
from trtkit.doctor import Machine
from trtkit.doctor.facts import GpuDevice, GpuDriver, SharedMemory

V100 = GpuDevice("Tesla V100", 16 << 30, 70)


def possible(machine: Machine) -> set[str]:
    return {name for name, allowance in machine.allows.items() if allowance.possible}


def test_a_laptop_runs_and_serves_the_reference_backend() -> None:
    assert possible(laptop()) == {"reference", "serve"}


def test_nvidias_image_on_an_h100_does_everything() -> None:
    assert possible(gpu_box()) == {"reference", "serve", "engine", "llmapi"}


@pytest.mark.parametrize("version", ["0.17.0", "0.21.0"])
def test_before_1_0_there_are_engines_only(version: str) -> None:
    assert "llmapi" not in possible(gpu_box(version=version))
    assert "engine" in possible(gpu_box(version=version))


def test_after_1_2_there_is_the_llm_api_only() -> None:
    assert "engine" not in possible(gpu_box(version="1.4.0rc1"))
    assert "llmapi" in possible(gpu_box(version="1.4.0rc1"))


@pytest.mark.parametrize(
    ("machine", "name", "reason"),
    [
        (laptop(packages={"numpy": "2.1.0", "torch": "2.13.0"}), "serve", "numpy 2.1.0"),
        (laptop(python="3.12.3"), "serve", "Python 3.12"),
        (laptop(triton=None), "serve", "no Triton server"),
        (laptop(shared_memory=SharedMemory(3 << 20, 3 << 20)), "serve", "/dev/shm has 3 MiB"),
        (laptop(shared_memory=None), "serve", "/dev/shm is missing"),
        (laptop(packages={"numpy": "1.26.4", "torch": None}), "reference", "torch is not installed"),
        (laptop(), "engine", "no NVIDIA driver"),
        (laptop(gpu=GpuDriver("580", None, ())), "engine", "names no GPU"),
        (gpu_box(V100), "engine", "SM 70"),
        (gpu_box(version=None), "engine", "not installed"),
        (gpu_box(version="0.16.0"), "engine", "no engine flow"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_missing_is_named_with_a_fix(machine: Machine, name: str, reason: str) -> None:
    allowance = machine.allows[name]
    assert not allowance.possible
    assert reason in allowance.reason
    assert allowance.fix


def test_a_container_needs_neither_stub_nor_numpy_1(tmp_path: Path) -> None:
    machine = gpu_box()
    assert machine.triton == CONTAINER != WHEEL
    assert machine.allows["serve"].possible


def test_gpus_are_counted_by_name() -> None:
    assert gpu_box(H100, H100).allows["engine"].reason == "TensorRT-LLM 1.2.1 with 2 x NVIDIA H100 80GB HBM3"
