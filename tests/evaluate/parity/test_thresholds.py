"""What must hold for a check or a bench to pass: by the build's YAML, overridden by flags and arguments."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deployed_tiny import copy_of, deployed_tiny
from trtkit.builds import Build
from trtkit.cli.main import cli
from trtkit.errors import DifferenceError
from trtkit.evaluate.assertions import assert_parity
from trtkit.evaluate.bench.limits import LatencyLimits, refuse_slowness
from trtkit.evaluate.oracle.record_choice import PromptChoice, record_build
from trtkit.evaluate.parity.shares import ParityShares, broken_shares, refuse_difference


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Build:
    made = deployed_tiny(tmp_path_factory.mktemp("tiny"))
    record_build(made, PromptChoice(limit=3))
    return made


@pytest.fixture
def build(plain: Build, tmp_path: Path) -> Build:
    return copy_of(plain, tmp_path / "build")


def configure(build: Build, **verification: float) -> Build:
    """The same build, made from a YAML with these keys of `verification`."""
    path = build.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["config"]["verification"] |= verification
    path.write_text(json.dumps(manifest))
    return replace(build, config=build.config.model_validate(manifest["config"]))


def report(identical: int, near_tie: int, **shares: float) -> dict[str, Any]:
    counts = {"identical": identical, "near_tie": near_tie, "different": 0}
    given = {"min_identical": 0.0, "max_near_tie": 1.0} | shares
    document = {"verdict": "near-tie", **counts, "prompts": [None] * (identical + near_tie), "shares": given}
    return {**document, "broken_shares": list(broken_shares(document))}


@pytest.mark.parametrize("shares", [{}, {"min_identical": 0.75}, {"max_near_tie": 0.25}])
def test_shares_that_are_kept_pass(shares: dict[str, float]) -> None:
    refuse_difference(report(3, 1, **shares))


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"min_identical": 0.8}, r"75\.00% of the prompts are identical, at least 80\.00% are asked for"),
        ({"max_near_tie": 0.2}, r"25\.00% of the prompts are near-ties, at most 20\.00% are allowed"),
    ],
)
def test_a_share_that_is_not_kept_is_named(shares: dict[str, float], said: str) -> None:
    with pytest.raises(DifferenceError, match=said) as caught:
        refuse_difference(report(3, 1, **shares))
    assert caught.value.code == "PARITY-SHARE"


def test_shares_come_from_the_yaml_and_what_is_given_wins(build: Build) -> None:
    made = configure(build, min_identical=0.5, max_near_tie=0.25)
    assert ParityShares().of(None) == {"min_identical": 0.0, "max_near_tie": 1.0}
    assert ParityShares().of(made) == {"min_identical": 0.5, "max_near_tie": 0.25}
    assert ParityShares(0.0).of(made) == {"min_identical": 0.0, "max_near_tie": 0.25}
    assert ParityShares(max_near_tie=1.0).of(made) == {"min_identical": 0.5, "max_near_tie": 1.0}


def test_a_check_reports_the_shares_it_was_held_to(build: Build) -> None:
    configure(build, min_identical=1.0)
    arguments = [
        "parity",
        "check",
        str(build.folder),
        "--in-process",
        "--limit",
        "3",
        "--max-near-tie",
        "0.5",
        "--json",
    ]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["shares"] == {"min_identical": 1.0, "max_near_tie": 0.5}


def test_an_assertion_takes_the_builds_shares(build: Build) -> None:
    document = assert_parity(configure(build, min_identical=0.25), PromptChoice(limit=3), in_process=True)
    assert document["shares"]["min_identical"] == 0.25


def test_limits_come_from_the_yaml_and_what_is_given_wins(build: Build) -> None:
    values = {"max_ttft_ms": 100.0, "max_tpot_ms": 20.0, "min_speedup": 1.1, "min_acceptance_rate": 0.4}
    made = configure(build, **values)
    assert LatencyLimits().over(made) == LatencyLimits(**values)
    assert LatencyLimits(max_tpot_ms=30.0).over(made) == LatencyLimits(**{**values, "max_tpot_ms": 30.0})
    assert LatencyLimits(max_tpot_ms=30.0).over(None) == LatencyLimits(max_tpot_ms=30.0)


def test_a_broken_limit_is_an_error_with_its_lines() -> None:
    refuse_slowness({"broken_limits": []})
    with pytest.raises(DifferenceError, match="too slow") as caught:
        refuse_slowness({"broken_limits": ["target c=1: too slow"]})
    assert caught.value.code == "BENCH-LIMIT"


@pytest.mark.tritonserver
def test_a_bench_is_held_to_the_limits_of_its_build_and_of_the_command_line(build: Build) -> None:
    configure(build, max_ttft_ms=60_000.0, min_acceptance_rate=0.9)
    bench = ["bench", str(build.folder), "--requests", "2", "--rounds", "1", "--no-plot", "--limit", "2"]
    result = CliRunner().invoke(cli, [*bench, "--max-tpot-ms", "0.0001"])
    assert result.exit_code == 1 and "tpot_ms" in result.stderr and "ttft_ms" not in result.stderr
    written = json.loads((build.folder / "bench" / "report.json").read_text())
    limits = {"max_ttft_ms": 60_000.0, "max_tpot_ms": 0.0001, "min_speedup": None, "min_acceptance_rate": 0.9}
    assert written["limits"] == limits
    assert len(written["broken_limits"]) == len(written["runs"])
