"""A build against a machine: version, SM, runtime and GPUs must match before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest
from deployments import yaml_document
from engine_folders import write_engine
from machines import H100, L40S, gpu_box, laptop
from trtkit.builds import Build, open_build
from trtkit.checking.folder_checks import check_build, check_machine
from trtkit.checking.rules.machine import BUILT_RULES, MACHINE_RULES
from trtkit.doctor import Machine
from trtkit.doctor.facts import GpuDriver, Limits, Memory, SharedMemory

GIB = 1 << 30


def build_of(folder: Path, backend: str = "engine", version: str = "1.2.1", **changes: Any) -> Build:
    """A build directory with nothing in it but its manifest."""
    basis = {"backend": backend, "tensorrt_llm": version, "gpu.count": 1}
    yaml = basis | {k.replace("__", "."): v for k, v in changes.items()}
    document = {
        "schema": "trtkit.manifest/1",
        "backend": backend,
        "tensorrt_llm": version,
        "config": yaml_document(yaml),
        "inputs": {},
    }
    (folder / "manifest.json").write_text(json.dumps(document))
    return open_build(folder)


def codes(machine: Machine, build: Build | None = None) -> set[str]:
    """What is found; known defects of a release, which every GPU box has, are left out."""
    return {finding.code for finding in check_machine(machine, build)} - {"HOST-BUG"}


def test_every_rule_is_tested_here() -> None:
    text = Path(__file__).read_text()
    assert [rule.code for rule in (*MACHINE_RULES, *BUILT_RULES) if f'"{rule.code}"' not in text] == []


def test_a_matching_machine_gives_no_finding(tmp_path: Path) -> None:
    assert codes(gpu_box(), build_of(tmp_path)) == set()


def test_another_version_is_refused(tmp_path: Path) -> None:
    assert codes(gpu_box(version="0.19.0"), build_of(tmp_path, version="0.17.0")) == {"RUN-VERSION"}
    assert codes(gpu_box(version="0.17.0"), build_of(tmp_path, version="0.17.0")) == set()


@pytest.mark.parametrize(
    ("built", "installed", "same"),
    [
        ("1.2", "1.2.0", True),
        ("1.0.3", "1.0.3.2510", True),
        ("1.2.1", "1.2.1+cu131", True),
        ("0.17.0", "0.17.0.post1", False),
        ("1.2.1", "1.2.0", False),
        ("1.2.1", "1.2.9", False),
    ],
)
def test_a_release_is_known_again_by_the_names_that_its_packages_have(
    built: str, installed: str, same: bool, tmp_path: Path
) -> None:
    for backend in ("engine", "llmapi"):
        if backend == "llmapi" and built.startswith("0."):
            continue
        found = codes(gpu_box(version=installed), build_of(tmp_path, backend, version=built))
        assert ("RUN-VERSION" in found) != same


def test_an_engine_of_another_release_than_the_build_is_refused(tmp_path: Path) -> None:
    build = build_of(tmp_path)
    for version, found in (("1.2.1", set()), ("1.0.0", {"RUN-ENGINE"})):
        write_engine(tmp_path / "engines" / "target", lambda document, v=version: document.update(version=v))
        assert codes(gpu_box(), build) == found
    (finding,) = [f for f in check_machine(gpu_box(), build) if f.code == "RUN-ENGINE"]
    assert "target is of TensorRT-LLM 1.0.0, the build is for 1.2.1" in finding.cause


def test_another_sm_is_refused(tmp_path: Path) -> None:
    assert codes(gpu_box(L40S), build_of(tmp_path)) == {"RUN-SM"}
    assert codes(gpu_box(L40S), build_of(tmp_path, gpu__name="l40s")) == set()


def test_a_build_that_names_no_gpu_is_not_held_against_one(tmp_path: Path) -> None:
    assert codes(gpu_box(L40S), build_of(tmp_path, gpu=...)) == set()


def test_engines_need_a_runtime(tmp_path: Path) -> None:
    assert codes(laptop(), build_of(tmp_path)) == {"RUN-RUNTIME"}


def test_every_rank_needs_a_gpu(tmp_path: Path) -> None:
    assert codes(gpu_box(H100), build_of(tmp_path, target__tensor_parallel=2)) == {"RUN-GPUS"}
    assert codes(gpu_box(H100, H100), build_of(tmp_path, target__tensor_parallel=2)) == set()


def test_a_draft_with_a_gpu_of_its_own_needs_that_too(tmp_path: Path) -> None:
    apart = {"draft": {"checkpoint": "d"}, "speculation": {"kind": "draft_target"}, "gpu__count": 2}
    assert codes(gpu_box(H100), build_of(tmp_path, **apart)) == {"RUN-GPUS"}
    assert codes(gpu_box(H100, H100), build_of(tmp_path, **apart)) == set()
    assert codes(gpu_box(H100), build_of(tmp_path, "llmapi", **apart)) == set()


def test_a_reference_build_needs_what_serves_it(tmp_path: Path) -> None:
    numpy_2 = laptop(packages={"numpy": "2.1.0", "torch": "2.13.0"})
    assert codes(numpy_2, build_of(tmp_path, "reference")) == {"RUN-SERVE"}
    assert codes(laptop(), build_of(tmp_path, "reference")) == set()


@pytest.mark.parametrize(
    ("machine", "code"),
    [
        (laptop(limits=Limits(1024, None, None)), "HOST-FILES"),
        (laptop(shared_memory=SharedMemory(64 << 20, 64 << 20)), "HOST-SHM"),
        (gpu_box(limits=Limits(65536, 8 << 20, None)), "HOST-MEMLOCK"),
        (laptop(memory=Memory(64 * GIB, 64 * GIB, 64 * GIB, 2)), "HOST-NUMA"),
    ],
)
def test_a_tight_machine_is_warned_about(machine: Machine, code: str) -> None:
    assert codes(machine) == {code}


@pytest.mark.parametrize(
    "machine",
    [
        laptop(limits=Limits(4096, None, None)),
        laptop(shared_memory=SharedMemory(512 << 20, 512 << 20)),
        laptop(limits=Limits(65536, 8 << 20, None)),
        laptop(),
    ],
)
def test_a_machine_with_just_enough_is_not(machine: Machine) -> None:
    assert codes(machine) == set()


@pytest.mark.parametrize(
    ("able", "expected"), [("12.8", {"HOST-DRIVER"}), ("13.1", set()), ("13.2", set()), (None, set())]
)
def test_the_drivers_cuda_must_not_be_older(able: str | None, expected: set[str]) -> None:
    assert codes(gpu_box(gpu=GpuDriver("580.82.07", able, (H100,)))) == expected


def test_the_known_defects_of_the_installed_release_are_named() -> None:
    found = [finding.cause for finding in check_machine(gpu_box(version="1.1.0"), None) if finding.code == "HOST-BUG"]
    assert any("log probabilities crashes" in cause for cause in found)
    assert "HOST-BUG" not in {finding.code for finding in check_machine(laptop(), None)}


@pytest.mark.parametrize("text", ["no json", "{}", '{"schema": "trtkit.manifest/1", "config": {}}'])
def test_a_damaged_manifest_is_one_finding(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    (finding,) = check_build(tmp_path)
    assert finding.code in ("BUILD-MANIFEST", "CONFIG")
