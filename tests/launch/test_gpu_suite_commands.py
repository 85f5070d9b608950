"""Every command that the GPU suite calls, run on a CPU against a real server: the options exist, the answers hold."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from gpu_deployment import Pair, pair_document, trtkit
from tiny import tiny_checkpoint
from trtkit.server.endpoints import free_endpoints

pytestmark = [pytest.mark.slow, pytest.mark.tritonserver]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The suite's YAML for a tiny pair on the reference backend, built and served by trtkit: folder and URL."""
    folder = tmp_path_factory.mktemp("suite")
    tiny_checkpoint(folder / "target", tokenizer=True)
    tiny_checkpoint(folder / "draft", tokenizer=True, num_hidden_layers=1)
    endpoints = free_endpoints()
    ports = (endpoints.http_port, endpoints.grpc_port, endpoints.metrics_port)
    document = pair_document(Pair("tiny", str(folder / "target"), str(folder / "draft")), "reference", "1.2.1", ports)
    document["limits"] = {"max_batch_size": 2, "max_input_len": 128, "max_output_len": 64}
    for role in ("target", "draft"):
        document[role]["dtype"] = "float32"
    (folder / "pair.yaml").write_text(yaml.safe_dump(document))
    (folder / "prompts.txt").write_text("Hello there\nThe test of it\n")
    trtkit("check", str(folder / "pair.yaml"))
    assert trtkit("build", str(folder / "pair.yaml"), "--out", str(folder / "build"))["manifest"]
    with (folder / "serve.out").open("w") as out:
        command = [sys.executable, "-P", "-m", "trtkit", "serve", str(folder / "build")]
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            _wait(folder / "serve.out", server)
            yield folder, f"grpc://{endpoints.grpc}"
        finally:
            server.terminate()
            server.wait(60)


def _wait(output: Path, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 300
    while "grpc" not in output.read_text() and time.monotonic() < deadline:
        assert server.poll() is None, output.read_text()
        time.sleep(0.2)


def prompts(folder: Path) -> tuple[str, ...]:
    return ("--limit", "2", "--max-new-tokens", "8", "--prompts", str(folder / "prompts.txt"))


def test_a_second_build_is_instant(served: tuple[Path, str]) -> None:
    folder, _ = served
    report = trtkit("build", str(folder / "pair.yaml"), "--out", str(folder / "build"))
    assert all(stage["skipped"] for stage in report["stages"] if stage["stage"] != "check")


def test_parity_by_url_and_record(served: tuple[Path, str]) -> None:
    folder, url = served
    trtkit("parity", "record", str(folder / "build"), "--device", "cpu", *prompts(folder))
    record = folder / "build" / "parity" / "record.json"
    choices = ("--record", str(record), "--dtype", "float32", "--out", str(record.parent), *prompts(folder))
    result = trtkit("parity", "check", url, *choices)
    assert (result["different"], result["identical"]) == (0, 2)


def test_bench_by_url(served: tuple[Path, str]) -> None:
    folder, url = served
    choices = ("--concurrency", "1", "--requests", "2", "--rounds", "1", "--no-plot", *prompts(folder))
    result = trtkit("bench", url, "--draft-len", "4", *choices, "--out", str(folder / "build" / "bench"))
    assert {run["mode"] for run in result["runs"]} >= {"target", "speculative"}
    assert all(run["tpot_ms"]["p50"] > 0 for run in result["runs"])


def test_text_and_check(served: tuple[Path, str]) -> None:
    folder, url = served
    assert trtkit("generate", url, "Hello", "--max-tokens", "8")["text"]
    assert trtkit("check", str(folder / "build"))["ok"]
