"""The probes read what files and nvidia-smi say, on machines that are made of files here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from trtkit.doctor import inspect_machine
from trtkit.doctor.gpu import parse_cuda_version, parse_query, read_cuda_toolkit, read_gpu
from trtkit.doctor.host import container_name, read_memory, usable_cpus
from trtkit.doctor.installed import find_libpython, find_triton, stub_of
from trtkit.doctor.machine import machine_record

GIB = 1 << 30
MEMINFO = "MemTotal:       33554432 kB\nMemFree:         1000000 kB\nMemAvailable:   16777216 kB\n"


def put(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_memory_without_a_limit_is_the_machines(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    memory = read_memory(tmp_path)
    assert (memory.total_bytes, memory.available_bytes, memory.limit_bytes) == (32 * GIB, 16 * GIB, 32 * GIB)


def test_a_cgroup_limits_memory(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    put(tmp_path, "sys/fs/cgroup/memory.max", str(8 * GIB))
    put(tmp_path, "sys/fs/cgroup/memory.current", str(3 * GIB))
    memory = read_memory(tmp_path)
    assert (memory.available_bytes, memory.limit_bytes) == (5 * GIB, 8 * GIB)


@pytest.mark.parametrize("text", ["max", str(0x7FFFFFFFFFFFF000)])
def test_an_unlimited_cgroup_does_not(text: str, tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    put(tmp_path, "sys/fs/cgroup/memory.max", text)
    assert read_memory(tmp_path).limit_bytes == 32 * GIB


def test_a_version_1_cgroup_limits_memory_too(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    put(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", str(4 * GIB))
    assert read_memory(tmp_path).limit_bytes == 4 * GIB


def test_numa_nodes_are_counted(tmp_path: Path) -> None:
    put(tmp_path, "sys/devices/system/node/node0/x", "")
    put(tmp_path, "sys/devices/system/node/node1/x", "")
    assert read_memory(tmp_path).numa_nodes == 2


def test_a_cpu_quota_counts_as_fewer_cores(tmp_path: Path) -> None:
    put(tmp_path, "sys/fs/cgroup/cpu.max", "50000 100000")
    assert usable_cpus(tmp_path) == 1
    put(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000")
    assert usable_cpus(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("path", "text", "name"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("proc/1/cgroup", "0::/kubepods/burstable/x", "kubepods"),
        ("proc/1/cgroup", "0::/init.scope", None),
    ],
)
def test_the_container_is_recognised(path: str, text: str, name: str | None, tmp_path: Path) -> None:
    put(tmp_path, path, text)
    assert container_name(tmp_path) == name


def test_nvidia_smi_lists_gpus() -> None:
    devices, version = parse_query("NVIDIA L40S, 46068, 8.9, 580.82.07\nNVIDIA L40S, 46068, 8.9, 580.82.07\n")
    assert version == "580.82.07"
    assert [(device.name, device.sm, device.memory_bytes) for device in devices] == [
        ("NVIDIA L40S", 89, 46068 << 20)
    ] * 2


def test_a_jetson_does_not_tell_its_memory() -> None:
    devices, _ = parse_query("Orin (nvgpu), [N/A], 8.7, 540.4.0\n")
    assert (devices[0].sm, devices[0].memory_bytes) == (87, 0)


def test_a_failing_nvidia_smi_lists_nothing() -> None:
    assert parse_query("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.") == ((), None)


def test_the_cuda_version_stands_in_the_header() -> None:
    assert parse_cuda_version("| NVIDIA-SMI 580.82.07   Driver Version: 580.82.07   CUDA Version: 13.0  |") == "13.0"


def test_a_real_nvidia_smi_program_is_asked(tmp_path: Path) -> None:
    program = put(
        tmp_path,
        "nvidia-smi",
        '#!/bin/sh\ncase "$1" in --query*) echo "NVIDIA A10, 23028, 8.6, 550.54";; *) '
        'echo "CUDA Version: 12.4";; esac\n',
    )
    program.chmod(0o755)
    driver = read_gpu(program, tmp_path)
    assert driver is not None
    assert (driver.version, driver.cuda, driver.devices[0].sm) == ("550.54", "12.4", 86)


def test_without_nvidia_smi_the_drivers_file_still_tells_its_version(tmp_path: Path) -> None:
    put(
        tmp_path,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\n",
    )
    driver = read_gpu(None, tmp_path)
    assert driver is not None
    assert (driver.version, driver.devices) == ("550.54.14", ())
    assert read_gpu(None, tmp_path / "elsewhere") is None


def test_the_stub_is_the_one_for_this_python(tmp_path: Path) -> None:
    put(tmp_path, "python_backend_stubs/3.11/triton_python_backend_stub", "")
    assert stub_of(tmp_path, "3.11") is not None
    assert stub_of(tmp_path, "3.14") is None


def test_libpython_is_looked_for_in_order(tmp_path: Path) -> None:
    put(tmp_path, "two/libpython3.11.so.1.0", "")
    found = find_libpython([tmp_path / "one", tmp_path / "two"], "3.11")
    assert found == tmp_path / "two" / "libpython3.11.so.1.0"
    assert find_libpython([tmp_path / "two"], "3.12") is None


def test_an_nvidia_container_wins_over_the_wheel(tmp_path: Path) -> None:
    put(tmp_path, "opt/tritonserver/bin/tritonserver", "")
    put(tmp_path, "opt/tritonserver/TRITON_VERSION", "2.60.0\n")
    put(tmp_path, "opt/tritonserver/backends/tensorrtllm/libtriton_tensorrtllm.so", "")
    triton = find_triton({}, tmp_path)
    assert triton is not None
    assert (triton.kind, triton.version, triton.has_trtllm_backend) == ("container", "2.60.0", True)
    assert triton.stub_python is None
    stub = put(tmp_path, "opt/tritonserver/backends/python/triton_python_backend_stub", "")
    stub.write_bytes(b"\x7fELF\0libpython3.12.so.1.0\0")
    again = find_triton({}, tmp_path)
    assert again is not None and again.stub_python == "3.12"


def test_the_cuda_toolkit_of_a_container_tells_its_version(tmp_path: Path) -> None:
    assert read_cuda_toolkit(tmp_path) is None
    put(tmp_path, "usr/local/cuda/version.json", '{"cuda": {"name": "CUDA SDK", "version": "13.1.0"}}')
    assert read_cuda_toolkit(tmp_path) == "13.1.0"
    put(tmp_path, "usr/local/cuda/version.json", "[]")
    assert read_cuda_toolkit(tmp_path) is None


def test_this_machine_can_be_inspected_and_recorded() -> None:
    machine = inspect_machine()
    assert machine.python == ".".join(map(str, sys.version_info[:3]))
    assert machine.memory.limit_bytes > 0
    record = machine_record(machine)
    assert record["allows"].keys() == {"reference", "serve", "engine", "llmapi"}


def test_inspecting_imports_nothing_heavy() -> None:
    probe = (
        "import sys; from trtkit.doctor import inspect_machine; inspect_machine().allows;"
        "print(sorted({'torch', 'transformers', 'numpy', 'pytriton', 'tensorrt_llm'} & sys.modules.keys()))"
    )
    assert subprocess.check_output([sys.executable, "-P", "-c", probe], text=True).strip() == "[]"
