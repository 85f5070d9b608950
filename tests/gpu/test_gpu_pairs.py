"""On a GPU, inside NVIDIA's image: build the engines, open them, serve, compare with PyTorch, measure.

Not run by default. docs/gpu-verification.md has the one command. TRTKIT_LLAMA_TARGET and TRTKIT_LLAMA_DRAFT name the
folders of a Llama pair; without them only the demo pair is built.
"""

import importlib.metadata
import json
import os
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from gpu_deployment import Pair, pair_document, served, trtkit
from trtkit.doctor import inspect_machine
from trtkit.engines.inspect import check_rank_files, read_engine
from trtkit.engines.release import find_release
from trtkit.engines.runtime import summarise_engine

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(7200)]
DEMO = Pair("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", "trtkit/smollm2-draft")
PROMPTS = ("--limit", "8", "--max-new-tokens", "48")


def pairs() -> list[Pair]:
    target, draft = os.environ.get("TRTKIT_LLAMA_TARGET"), os.environ.get("TRTKIT_LLAMA_DRAFT")
    return [DEMO, Pair("llama", target, draft)] if target and draft else [DEMO]


@dataclass(frozen=True)
class Deployment:
    """A finished build and the ports that its server listens on."""

    build: Path
    http_port: int
    grpc_port: int

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.grpc_port}"


def free_ports() -> tuple[int, int, int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        http, grpc, metrics = (each.getsockname()[1] for each in sockets)
    return http, grpc, metrics


@pytest.fixture(scope="module")
def version() -> str:
    """The installed release; the suite fails, and does not skip, where it cannot run."""
    machine = inspect_machine()
    assert machine.gpu and machine.gpu.devices, "no NVIDIA GPU: run in the container with --gpus all"
    installed = importlib.metadata.version("tensorrt-llm")
    release = find_release(installed)
    assert release is not None, f"TensorRT-LLM {installed} is not a release trtkit knows"
    return release.version


@pytest.fixture(scope="module", params=pairs(), ids=lambda pair: pair.name)
def engines(request: pytest.FixtureRequest, version: str, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A pair built for the backend engine."""
    folder = tmp_path_factory.mktemp(request.param.name)
    ports = free_ports()
    config = folder / "pair.yaml"
    config.write_text(yaml.safe_dump(pair_document(request.param, "engine", version, ports)))
    trtkit("check", str(config))
    report = trtkit("build", str(config), "--out", str(folder / "build"))
    assert report["manifest"], report
    return Deployment(folder / "build", ports[0], ports[1])


@pytest.fixture(scope="module")
def server(engines: Deployment) -> Iterator[Deployment]:
    with served(engines.build, engines.http_port):
        yield engines


def test_a_second_build_is_instant(engines: Deployment) -> None:
    report = trtkit("build", str(engines.build.parent / "pair.yaml"), "--out", str(engines.build))
    assert all(stage["skipped"] for stage in report["stages"] if stage["stage"] != "check")


@pytest.mark.parametrize("role", ["target", "draft"])
def test_the_engines_are_complete_and_tensorrt_opens_them(engines: Deployment, role: str) -> None:
    info = read_engine(engines.build / "engines" / role)
    check_rank_files(info)
    assert all((info.folder / name).stat().st_size > 0 for name in info.rank_files)
    for summary in summarise_engine(info):
        assert summary.layers and summary.tensors and summary.device_bytes > 0


def test_the_engine_directory_passes_the_check(engines: Deployment) -> None:
    assert trtkit("check", str(engines.build / "engines" / "target"))["ok"]
    assert trtkit("check", str(engines.build))["ok"]


def test_greedy_answers_are_pytorchs(server: Deployment) -> None:
    trtkit("parity", "record", str(server.build), "--device", "cuda", *PROMPTS)
    record = server.build / "parity" / "record.json"
    choices = ("--record", str(record), "--dtype", "bfloat16", "--out", str(record.parent), *PROMPTS)
    result = trtkit("parity", "check", server.url, *choices)
    assert result["different"] == 0, result
    assert result["identical"] > 0, result


def test_speculation_is_measured_against_the_plain_target(server: Deployment) -> None:
    choices = ("--concurrency", "1", "--requests", "4", "--rounds", "2", "--no-plot", *PROMPTS)
    result = trtkit("bench", server.url, "--draft-len", "4", *choices, "--out", str(server.build / "bench"))
    assert {run["mode"] for run in result["runs"]} >= {"target", "speculative"}
    assert all(run["tpot_ms"]["p50"] > 0 for run in result["runs"])


def test_text_is_streamed(server: Deployment) -> None:
    answer = trtkit("generate", server.url, "The capital of France is", "--max-tokens", "16")
    assert answer["text"]


def test_the_llm_api_serves_the_same_pair(version: str, tmp_path: Path) -> None:
    release = find_release(version)
    assert release is not None
    if release.llm_api is None:
        pytest.skip(f"TensorRT-LLM {version} has no stable LLM API")
    ports = free_ports()
    config = tmp_path / "pair.yaml"
    config.write_text(yaml.safe_dump(pair_document(DEMO, "llmapi", version, ports)))
    trtkit("build", str(config), "--out", str(tmp_path / "build"))
    with served(tmp_path / "build", ports[0]) as log:
        answers = stream(ports[0], "The capital of France is")
        assert "".join(answers).strip(), log


def stream(http_port: int, prompt: str) -> list[str]:
    """The texts that the llmapi model streams over Triton's generate_stream, as server-sent events."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{http_port}/v2/models/tensorrt_llm/generate_stream",
        data=json.dumps({"text_input": prompt, "sampling_param_max_tokens": 8, "streaming": True}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        lines = [line.decode().strip() for line in response]
    return [json.loads(line.removeprefix("data:"))["text_output"] for line in lines if line.startswith("data:")]
