"""The main job on the real demo pair, through the command line and a real Triton server on a CPU."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trtkit.client.completion import collect
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient

ROOT = Path(__file__).resolve().parents[1]
PROMPT = "The history of the printing press began"
MAX_TOKENS = 48

pytestmark = [pytest.mark.demo, pytest.mark.tritonserver]


def trtkit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "trtkit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def result_of(*arguments: str) -> dict[str, Any]:
    done = trtkit(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def build(demo_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "smollm2"
    result_of("build", "build_configs/smollm2_spec.yaml", "--out", str(out))
    return out


@pytest.fixture(scope="module")
def address(build: Path) -> Iterator[str]:
    """The gRPC address of `trtkit serve`, which has to stop cleanly when it is interrupted."""
    command = [sys.executable, "-P", "-m", "trtkit", "serve", str(build)]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        lines: list[str] = []
        for line in server.stdout:
            lines.append(line)
            if found := re.search(r"grpc://(\S+)", line):
                break
        else:
            pytest.fail(f"serve ended: {''.join(lines)}{server.stderr.read() if server.stderr else ''}")
        record = json.loads((build / "launch" / "server.json").read_text())
        yield found.group(1)
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 0, errors
    assert "Traceback" not in errors
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(record["shm_prefix"])]  # noqa: PTH208
    assert not Path(f"/proc/{record['pid']}").exists()
    assert not (build / "launch" / "server.json").exists()


def test_the_manifest_says_what_was_built_from_what(build: Path) -> None:
    manifest = json.loads((build / "manifest.json").read_text())
    assert manifest["backend"] == "reference"
    assert manifest["inputs"]["target"]["checkpoint"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert manifest["limits"]["target"]["max_draft_len"] == 2
    assert all(stage["seconds"] >= 0 for stage in manifest["stages"])


def test_a_generation_streams_with_speculation(address: str) -> None:
    pieces: list[str] = []
    with TritonClient(address) as client:
        answer = collect(client.generate(GenerateRequest(PROMPT, max_tokens=MAX_TOKENS)), pieces.append)
    assert len(answer.token_ids) == MAX_TOKENS
    assert answer.text == "".join(pieces) and len(pieces) > MAX_TOKENS // 5
    assert answer.figures.num_draft_tokens > 0
    assert "�" not in answer.text


def test_speculation_changes_nothing_but_the_time(address: str) -> None:
    """bfloat16 kernels may break near-ties by the number of rows; a common start of several words must stand."""
    with TritonClient(address) as client:
        answers = [
            collect(client.generate(GenerateRequest(PROMPT, max_tokens=12, num_draft_tokens=k)), str).token_ids
            for k in (0, 1, 2)
        ]
    assert answers[0] == answers[1] == answers[2]


def test_a_cancelled_answer_leaves_a_healthy_server(address: str) -> None:
    with TritonClient(address) as client:
        before = collect(client.generate(GenerateRequest(PROMPT, max_tokens=8)), str)
        under_way = client.generate(GenerateRequest(PROMPT, max_tokens=400))
        for number, _ in enumerate(under_way):
            if number == 3:
                under_way.cancel()
        after = collect(client.generate(GenerateRequest(PROMPT, max_tokens=8)), str)
    assert after.token_ids == before.token_ids


def test_generate_prints_the_text_of_a_running_build(address: str, build: Path) -> None:
    done = trtkit("generate", str(build), "What is the capital of France?", "--chat", "--max-tokens", "16")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "The capital of France is Paris."


def test_parity_finds_no_real_difference_in_bfloat16(address: str, build: Path) -> None:
    report = result_of("parity", "check", str(build), "--limit", "6", "--max-new-tokens", "24")
    assert report["verdict"] in ("identical", "near-tie")
    assert report["different"] == 0 and report["identical"] + report["near_tie"] == 6
    assert (build / "parity" / "report.json").is_file() and (build / "parity" / "junit.xml").is_file()


def test_bench_measures_speculation_on_and_off_in_one_run(address: str, build: Path) -> None:
    report = result_of("bench", str(build), "--requests", "2", "--max-new-tokens", "16")
    modes = {run["mode"]: run for run in report["runs"]}
    assert {"target", "speculative"} <= modes.keys()
    assert all(run["tpot_ms"]["p50"] > 0 and run["ttft_ms"]["p95"] > 0 for run in modes.values())
    assert 0 <= modes["speculative"]["acceptance_rate"] <= 1


def test_a_float32_build_is_identical_everywhere(demo_pair: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "float32"
    settings = ("--set", "target.dtype=float32", "--set", "draft.dtype=float32")
    result_of("build", "build_configs/smollm2_spec.yaml", "--out", str(out), *settings)
    report = result_of("parity", "check", str(out), "--limit", "6", "--max-new-tokens", "24")
    assert report["verdict"] == "identical"
    assert report["identical"] == 6
