"""Users' own tests: assertions that fail with the whole story, and the fixtures of the pytest plugin."""

import asyncio
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deployed_tiny import change_weights, copy_of, deployed_tiny
from trtkit.builds import Build
from trtkit.cli.bench import command as bench
from trtkit.cli.main import cli
from trtkit.cli.parity import command as parity
from trtkit.errors import InputError
from trtkit.evaluate.assertions import assert_latency, assert_parity, assert_sampling
from trtkit.evaluate.bench.limits import LatencyLimits, broken_limits
from trtkit.evaluate.bench.run import BenchOptions
from trtkit.evaluate.oracle.record_choice import PromptChoice
from trtkit.evaluate.repeat import bench_command, sampling_command

CHOICE = PromptChoice(limit=6)


def report() -> dict[str, Any]:
    def run(mode: str, draft_len: int, ttft: float, tpot: float | None, acceptance: float | None) -> dict[str, Any]:
        return {
            "mode": mode,
            "max_draft_len": draft_len,
            "concurrency": 1,
            "ttft_ms": {"p50": ttft, "p95": 99.0},
            "tpot_ms": None if tpot is None else {"p50": tpot, "p95": 99.0},
            "acceptance_rate": acceptance,
        }

    return {
        "speedups": [{"draft_len": 4, "concurrency": 1, "factor": 0.8}],
        "runs": [
            run("oracle", 0, 500.0, 50.0, None),
            run("target", 0, 20.0, 5.0, None),
            run("speculative", 4, 25.0, 6.0, 0.3),
        ],
    }


def test_figures_within_their_limits_break_nothing() -> None:
    assert list(broken_limits(report(), LatencyLimits(25.0, 6.0, 0.8, 0.3))) == []
    assert list(broken_limits(report(), LatencyLimits())) == []


def test_every_broken_limit_is_a_line_and_transformers_has_none() -> None:
    assert list(broken_limits(report(), LatencyLimits(22.0, 4.0, 1.1, 0.5))) == [
        "target c=1: tpot_ms 5, at most 4 allowed",
        "K=4 c=1: ttft_ms 25, at most 22 allowed",
        "K=4 c=1: tpot_ms 6, at most 4 allowed",
        "K=4 c=1: speed-up 0.8, at least 1.1 asked for",
        "K=4 c=1: acceptance_rate 0.3, at least 0.5 asked for",
    ]


def test_a_figure_that_was_not_measured_breaks_its_limit() -> None:
    document = report()
    document["runs"][1]["tpot_ms"], document["speedups"] = None, []
    assert list(broken_limits(document, LatencyLimits(max_tpot_ms=10.0, min_speedup=0.5))) == [
        "target c=1: tpot_ms not measured, at most 10 allowed",
        "K=4 c=1: speed-up not measured, at least 0.5 asked for",
    ]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return deployed_tiny(tmp_path_factory.mktemp("tiny"))


USERS_TESTS = """
from trtkit.pytest import LatencyLimits, PromptChoice, assert_latency, assert_parity

def test_answers(trtkit_build, trtkit_server):
    document = assert_parity(trtkit_build, PromptChoice(limit=3), min_identical=1.0)
    assert document["num_requests"] > 3

def test_speed(trtkit_build, trtkit_server):
    assert_latency(trtkit_build, LatencyLimits(max_ttft_ms=60_000, min_acceptance_rate=0.9))
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_deployment.py").write_text(USERS_TESTS)
    return child_pytest(folder, "-q", *arguments)


def child_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A pytest with settings of its own, wherever this one takes its from."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-P", "-m", "pytest", "-p", "trtkit.pytest", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.tritonserver
def test_the_shipped_tests_run_on_a_build(build: Build, tmp_path: Path) -> None:
    asked = ["--trtkit-build", str(build.folder), "--trtkit-min-acceptance-rate", "2"]
    done = child_pytest(tmp_path, "-q", "-rs", "--pyargs", "trtkit.evaluate.shipped_tests", *asked)
    # The tiny build has no chat template, takes short prompts alone, and likes no token; no rate is above 1.
    assert "acceptance_rate 1, at least 2 asked for" in done.stdout, done.stdout
    assert "1 failed, 3 passed, 5 skipped" in done.stdout, done.stdout


@pytest.mark.tritonserver
def test_the_plugin_serves_the_build_for_a_users_tests(build: Build, tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--trtkit-build", str(build.folder))
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert not (build.folder / "launch" / "server.json").exists()


def test_several_processes_need_a_server_that_runs_already(build: Build, tmp_path: Path) -> None:
    worker = "def pytest_configure(config):\n    config.workerinput = {'workercount': 2}\n"  # as pytest-xdist has it
    (tmp_path / "conftest.py").write_text(worker)
    done = run_pytest(tmp_path, "--trtkit-build", str(build.folder))
    assert "TESTS-PARALLEL: these tests run in 2 processes" in done.stdout and "2 errors" in done.stdout, done.stdout


def test_without_a_build_a_users_tests_are_skipped(tmp_path: Path) -> None:
    done = run_pytest(tmp_path)
    assert done.returncode == 0 and "2 skipped" in done.stdout, done.stdout


@pytest.mark.parametrize("share", [float("nan"), -0.1, 60.0])
def test_a_share_that_is_none_is_refused(share: float, build: Build) -> None:
    for name in ("min_identical", "max_near_tie"):
        with pytest.raises(InputError, match=f"{name} is {share}, a share is between 0 and 1"):
            assert_parity(build, CHOICE, **{name: share}, in_process=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), -1.0])
def test_a_limit_that_limits_nothing_is_refused(limit: float) -> None:
    with pytest.raises(InputError, match=f"max_ttft_ms is {limit}, which limits nothing"):
        LatencyLimits(max_ttft_ms=limit)


def test_a_report_says_the_command_that_does_it_again(build: Build) -> None:
    choice = PromptChoice(limit=1, group="short", max_new_tokens=4)
    command = assert_parity(build, choice, min_identical=0.5, in_process=True)["command"]
    said = ["--limit", "1", "--max-new-tokens", "4", "--group", "short", "--min-identical", "0.5", "--in-process"]
    assert shlex.split(command) == ["trtkit", "parity", "check", str(build.folder), *said]
    again = CliRunner().invoke(cli, [*shlex.split(command)[1:], "--json"])
    assert again.exit_code == 0, again.stderr
    assert [prompt["group"] for prompt in json.loads(again.stdout)["prompts"]] == ["short"]


def test_every_option_of_a_bench_is_in_the_command_that_does_it_again() -> None:
    options = BenchOptions(
        PromptChoice(limit=3, group="code", max_new_tokens=8),
        draft_lens=(1, 2),
        concurrencies=(4,),
        num_requests=5,
        cold=False,
        with_oracle=True,
        plot=False,
        baseline=Path("a b.json"),
        limits=LatencyLimits(max_ttft_ms=200.0),
    )
    command = bench_command(Path("b"), options)
    assert command == (
        "trtkit bench b --limit 3 --max-new-tokens 8 --group code --max-ttft-ms 200.0 --draft-len 1 --draft-len 2 "
        "--concurrency 4 --requests 5 --baseline 'a b.json' --warm --no-plot --oracle"
    )
    bench.make_context("bench", shlex.split(command)[2:]).close()


def test_the_command_of_a_sampling_asks_for_the_same_prompts(build: Build, tmp_path: Path) -> None:
    """Without a limit the assertion takes every prompt, and the command three."""
    (tmp_path / "p.txt").write_text("a\nb\nc\nd\n")
    choices = (PromptChoice(tmp_path / "p.txt"), PromptChoice(limit=2, group="code", max_new_tokens=8))
    for choice in choices:
        said = sampling_command(build, choice, 0.25, 7)
        with parity.commands["sampling"].make_context("sampling", shlex.split(said)[3:]) as context:
            asked = context.params
        assert (asked["build"], asked["distance"], asked["seed"]) == (build.folder, 0.25, 7)
        again = PromptChoice(asked["prompts"], asked["limit"], group=asked["group"])
        assert again.read(build) == choice.read(build)


@pytest.mark.tritonserver
def test_an_assertion_of_latency_holds_the_baseline_and_runs_inside_a_loop(build: Build, tmp_path: Path) -> None:
    baseline = {
        "schema": "trtkit.bench-baseline/1",
        "tolerances": {"acceptance_rate": 0.1},
        "runs": {"speculative K=3 c=1": {"acceptance_rate": 5.0}},
    }
    (tmp_path / "baseline.json").write_text(json.dumps(baseline))
    options = BenchOptions(PromptChoice(limit=1), num_requests=1, rounds=1, plot=False)

    async def from_a_notebook() -> None:
        assert_latency(build, options=replace(options, baseline=tmp_path / "baseline.json"))

    with pytest.raises(AssertionError, match=r"(?s)acceptance_rate 1\.000, baseline 5\.000.*## Bench of"):
        asyncio.run(from_a_notebook())


def test_a_class_that_no_prompt_is_of_is_refused(build: Build) -> None:
    with pytest.raises(InputError, match="no prompt is of the class poems"):
        assert_parity(build, PromptChoice(group="poems"), in_process=True)


def test_a_difference_fails_with_the_report(build: Build, tmp_path: Path) -> None:
    broken = copy_of(build, tmp_path / "build")
    change_weights(broken, "target", lambda tensors: tensors["transformer.ln_f.weight"].mul_(-1))
    with pytest.raises(AssertionError, match=r"(?s)PARITY: different.*\| prompt \|.*at token 0 the oracle says"):
        assert_parity(broken, CHOICE, in_process=True)


def test_a_biased_sampling_fails_with_every_test(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"draft_len": 2, "position": 0, "num_samples": 99, "distance": 0.4, "detectable_distance": 0.2}
    tests = [
        {"name": "one", "decision": "consistent", "p_value": 0.5, **figures},
        {"name": "two", "decision": "different", "p_value": 1e-5, **figures},
    ]
    document = {"verdict": "different", "deployment": "b", "command": "trtkit", "tests": tests, "skipped": []}
    monkeypatch.setattr("trtkit.evaluate.sampling.run.check_sampling", lambda *_: document)
    with pytest.raises(AssertionError, match=r"(?s)1 of 2 tests reject.*\| one \| 2 \| 0 \| 99 \|.*\| two \|"):
        assert_sampling(build, CHOICE)
