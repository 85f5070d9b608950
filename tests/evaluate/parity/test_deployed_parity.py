"""Parity and bench over the wire: a tiny pair behind a real Triton server, driven through the command line."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from deployed_tiny import MAX_DRAFT_LEN, deployed_tiny
from documented_reports import undocumented
from trtkit.builds import Build
from trtkit.cli.main import cli
from trtkit.server.triton_server import TritonServer

pytestmark = pytest.mark.tritonserver


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return deployed_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def address(build: Build) -> Iterator[str]:
    with TritonServer(build.folder) as server:
        yield server.endpoints.grpc


def trtkit(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def document_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_a_clean_deployment_is_identical_and_leaves_its_reports(build: Build, address: str) -> None:
    document = document_of(trtkit("parity", "check", build.folder, "--limit", "10", "--json"))
    num_prompts = len(document["prompts"])
    assert num_prompts >= 5 and document["identical"] == num_prompts
    modes = {(case["draft_len"], case["condition"]) for prompt in document["prompts"] for case in prompt["cases"]}
    assert modes >= {(k, condition) for k in (0, MAX_DRAFT_LEN) for condition in ("cold", "repeated", "concurrent")}
    assert {"whole", "after-cancel"} <= {condition for _, condition in modes}
    assert document["acceptance"] == {"cold": 1.0, "repeated": 1.0}
    # The figures are those of an answer's first call, which meets the prompt. Prompts may share their first words, so
    # a cold one may find blocks too, as many as earlier answers left.
    reused = [{c["condition"]: c["num_reused_blocks"] for c in prompt["cases"]} for prompt in document["prompts"]]
    assert all(blocks["cold"] <= blocks["repeated"] for blocks in reused)
    assert any(blocks["repeated"] for blocks in reused)
    out = build.folder / "parity"
    assert json.loads((out / "report.json").read_text()) == document
    assert ElementTree.parse(out / "junit.xml").getroot().find("testsuite/testcase") is not None
    assert "identical" in (out / "summary.md").read_text()


def test_a_url_is_checked_with_the_record_of_its_build(build: Build, address: str, tmp_path: Path) -> None:
    assert undocumented(document_of(trtkit("parity", "record", build.folder, "--limit", "4", "--json"))) == set()
    record = build.folder / "parity" / "record.json"
    arguments = ["--record", record, "--dtype", "float32", "--limit", "4", "--out", tmp_path, "--json"]
    document = document_of(trtkit("parity", "check", f"grpc://{address}", *arguments))
    assert document["verdict"] == "identical"
    assert {case["draft_len"] for case in document["prompts"][0]["cases"]} == {0, None}
    assert (tmp_path / "junit.xml").exists()


def test_the_table_ends_with_the_summary(build: Build, address: str) -> None:
    result = trtkit("parity", "check", build.folder, "--limit", "4")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1].startswith("identical: ")
    assert "short-one-word" in result.stdout


def test_a_bench_measures_off_and_on_and_draws_them(build: Build, address: str) -> None:
    arguments = ["--requests", "4", "--rounds", "2", "--concurrency", "1", "--concurrency", "2", "--oracle", "--json"]
    document = document_of(trtkit("bench", build.folder, *arguments))
    kinds = [(run["mode"], run["max_draft_len"], run["concurrency"]) for run in document["runs"]]
    assert kinds == [
        ("oracle", 0, 1),
        ("target", 0, 1),
        ("speculative", MAX_DRAFT_LEN, 1),
        ("target", 0, 2),
        ("speculative", MAX_DRAFT_LEN, 2),
    ]
    for run in document["runs"]:
        assert run["num_requests"] == 8
        assert 0 < run["ttft_ms"]["p50"] <= run["ttft_ms"]["p95"]
    speculative = document["runs"][2]
    assert speculative["acceptance_rate"] == 1.0  # the draft has the target's weights
    assert speculative["mean_acceptance_length"] > MAX_DRAFT_LEN * 0.7
    assert (build.folder / "bench" / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((build.folder / "bench" / "report.json").read_text()) == document


def test_an_open_loop_sends_what_a_trace_says_and_leaves_a_trace_to_send_again(
    build: Build, address: str, tmp_path: Path
) -> None:
    common = ["--draft-len", "2", "--rounds", "1", "--no-plot", "--warm", "--json"]
    first = ["--rate", "40", "--requests", "6", "--out", tmp_path / "poisson"]
    document = document_of(trtkit("bench", build.folder, *common, *first))
    assert [(run["loop"], run["request_rate"]) for run in document["runs"]] == [("open", 40.0)] * 2
    assert document["speedups"] == []
    trace = tmp_path / "poisson" / "trace-40.jsonl"
    again = document_of(trtkit("bench", build.folder, *common, "--trace", trace, "--out", tmp_path / "trace"))
    assert [run["num_requests"] for run in again["runs"]] == [6, 6]
    positions = again["runs"][1]["acceptance_by_position"]
    assert positions == [1.0, 1.0]  # the draft has the target's weights
    assert again["runs"][0]["mean_reused_blocks"] is not None
    names = {path.name for path in (tmp_path / "trace").iterdir()}
    assert names == {"report.json", "report.html", "summary.md", "junit.xml", "prompts.jsonl"}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["parity", "check", "grpc://127.0.0.1:1"], 2, "--record"),
        (["parity", "check", "http://127.0.0.1:1"], 2, "grpc://host:port"),
        (["parity", "check", "grpc://127.0.0.1"], 2, "grpc://host:port"),
        (["parity", "check", "nowhere"], 2, "not a finished build"),
        (["parity", "record", "nowhere"], 2, "not a finished build"),
        (["bench", "grpc://127.0.0.1:1", "--oracle"], 2, "build directory"),
        (["bench", "grpc://127.0.0.1:1"], 4, "127.0.0.1:1"),
        (["bench", "grpc://127.0.0.1:1", "--concurrency", "9"], 2, "--requests 9"),
        (["bench", "grpc://127.0.0.1:1", "--trace", "none.jsonl"], 2, "cannot read the trace"),
        (["bench", "grpc://127.0.0.1:1", "--trace", "none.jsonl", "--rate", "2"], 2, "its own times"),
    ],
)
def test_an_impossible_request_is_one_message_and_an_exit_code(arguments: list[str], exit_code: int, said: str) -> None:
    result = trtkit(*arguments)
    assert (result.exit_code, said in result.stderr) == (exit_code, True), result.stderr
    assert "Fix: " in result.stderr and "Traceback" not in result.stderr


def test_without_the_libraries_of_the_oracle_a_record_is_asked_for(build: Build) -> None:
    hidden = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
    run = f"from trtkit.cli.main import cli; cli(['parity', 'record', {str(build.folder)!r}, '--limit', '9'])"
    done = subprocess.run([sys.executable, "-P", "-c", hidden + run], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert "torch and transformers" in done.stderr and "--record" in done.stderr


def test_longer_answers_than_recorded_are_refused_for_a_given_record(build: Build) -> None:
    document_of(trtkit("parity", "record", build.folder, "--limit", "4", "--json"))
    record = build.folder / "parity" / "record.json"
    result = trtkit("parity", "check", build.folder, "--record", record, "--max-new-tokens", "30")
    assert result.exit_code == 2
    assert "the record holds 12" in result.stderr


def test_a_bench_is_held_to_its_baseline(build: Build, address: str, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    bench = ["bench", build.folder, "--requests", "2", "--rounds", "1", "--no-plot", "--baseline", path]
    assert trtkit(*bench).exit_code == 2  # it does not exist yet
    document = document_of(trtkit(*bench, "--update-baseline", "--json"))
    skipped = {entry["name"]: entry["reason"] for entry in document["skipped"]}
    assert skipped["chat-tea"] == "chat-tea is a chat, and the tokenizer has no chat template"
    for name in ("summary.md", "report.html"):
        assert "chat-tea" in (build.folder / "bench" / name).read_text()
    baseline = json.loads(path.read_text())
    baseline["tolerances"]["speedup"] = 0.9  # a tiny model behind a busy machine says nothing about speed
    path.write_text(json.dumps(baseline))
    assert trtkit(*bench).exit_code == 0
    baseline["runs"][f"speculative K={MAX_DRAFT_LEN} c=1"]["mean_acceptance_length"] = 99.0
    path.write_text(json.dumps(baseline))
    result = trtkit(*bench)
    assert result.exit_code == 1
    assert "mean_acceptance_length" in result.stderr and "99.000" in result.stderr
    assert "tokens/pass" in result.stdout  # the report comes first
    before = path.read_text()
    assert trtkit(*bench, "--update-baseline", "--max-ttft-ms", "0.0001").exit_code == 1
    assert path.read_text() == before  # a bench that failed is no baseline
