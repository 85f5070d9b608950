"""Samples over the wire against the target's distribution: a clean deployment passes, a biased one is found."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from deployed_tiny import MAX_DRAFT_LEN, change_weights, copy_of, deployed_tiny
from documented_reports import undocumented
from trtkit.builds import Build
from trtkit.cli.main import cli
from trtkit.server.triton_server import TritonServer

pytestmark = pytest.mark.tritonserver


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    made = deployed_tiny(tmp_path_factory.mktemp("tiny"))
    with TritonServer(made.folder):
        yield made


def sampling(build: Build, *arguments: str) -> tuple[int, dict[str, Any], str]:
    size = ["--limit", "3", "--distance", "0.25", "--temperature", "0.18"]
    command = ["parity", "sampling", str(build.folder), *size, "--json", *arguments]
    result = CliRunner().invoke(cli, command)
    return result.exit_code, json.loads(result.stdout), result.stderr


def test_a_clean_deployment_is_consistent_with_and_without_drafts(build: Build) -> None:
    exit_code, document, _ = sampling(build)
    assert (exit_code, document["verdict"]) == (0, "consistent")
    assert undocumented(document) == set()
    assert document["command"].startswith(f"trtkit parity sampling {build.folder} --limit 3 ")
    assert {test["draft_len"] for test in document["tests"]} == {0, MAX_DRAFT_LEN}
    assert {test["position"] for test in document["tests"]} == {0, 1}
    assert document["same_draws"] == 1.0  # in float32 a seed's token does not depend on drafting
    assert all(0 < test["detectable_distance"] < 1 for test in document["tests"])
    assert document["num_samples"] < document["most_samples"]  # a good deployment ends early
    assert json.loads((build.folder / "parity" / "sampling.json").read_text()) == document


def test_a_seed_repeats_its_samples_and_another_one_draws_others(build: Build) -> None:
    (_, one, _), (_, again, _), (_, other, _) = (sampling(build, "--seed", seed) for seed in ("5", "5", "6"))
    assert one["tests"] == again["tests"] != other["tests"]


@pytest.mark.parametrize("formats", [{"quantization": "int4_weight_only"}, {"kv_dtype": "int4"}], ids=str)
def test_what_storing_costs_is_no_fault_of_the_sampling(formats: dict[str, str], tmp_path: Path) -> None:
    """Four bits move the distribution further than any test misses; a deployment samples from what it stores."""
    exit_code, document, _ = sampling(deployed_tiny(tmp_path, **formats))
    assert (exit_code, document["verdict"]) == (0, "consistent")
    assert document["probabilities"] == ("transformers" if "quantization" in formats else "checkpoint")


@pytest.mark.parametrize("scale", [2.5, 0.4])
def test_another_temperature_is_found(scale: float, build: Build, tmp_path_factory: pytest.TempPathFactory) -> None:
    hot = copy_of(build, tmp_path_factory.mktemp("hot") / "build")
    flatten: Callable[[dict[str, Any]], None] = lambda tensors: tensors["lm_head.weight"].mul_(scale)  # noqa: E731
    change_weights(hot, "target", flatten)
    exit_code, document, errors = sampling(hot)
    assert (exit_code, document["verdict"]) == (1, "different")
    assert "total variation" in errors
    suite = ElementTree.parse(hot.folder / "parity" / "sampling-junit.xml").find("testsuite")
    assert suite is not None and len(suite) == len(document["tests"]) + len(document["skipped"])
    assert len(suite.findall("testcase/failure")) == sum(t["decision"] == "different" for t in document["tests"])
    assert "sampling.html]]" in suite.findtext("testcase[failure]/system-out", "")
    assert "reject the target&#x27;s distribution" in (hot.folder / "parity" / "sampling.html").read_text()
    assert ": different\n" in (hot.folder / "parity" / "sampling.md").read_text()


def test_prompts_of_which_nothing_is_tested_are_listed(build: Build, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Once upon a time\n" + "more and more " * 200 + "\n")
    _, document, _ = sampling(build, "--prompts", str(tmp_path / "prompts.txt"))
    tested = {test["name"] for test in document["tests"]}
    skipped = {entry["name"]: entry["reason"] for entry in document["skipped"]}
    assert tested == {"prompts-1"} and "tokens, the deployment takes" in skipped["prompts-2"]
    for name in ("sampling.md", "sampling.html", "sampling-junit.xml"):
        assert "prompts-2" in (build.folder / "parity" / name).read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--alpha", "0.0001"), "at which none can ever fail"),
        (("--temperature", "1000"), "no position can be tested"),
        (("--temperature", "0.0001"), "no position can be tested"),
    ],
)
def test_a_check_that_could_not_fail_is_refused(arguments: tuple[str, str], said: str, build: Build) -> None:
    result = CliRunner().invoke(cli, ["parity", "sampling", str(build.folder), "--limit", "3", *arguments])
    assert result.exit_code == 2 and said in result.stderr, result.output


def test_a_prompt_that_the_window_would_cut_is_not_sampled(build: Build, tmp_path: Path) -> None:
    bounded = copy_of(build, tmp_path / "build")
    manifest = json.loads((bounded.folder / "manifest.json").read_text())
    manifest["config"]["attention_sinks"] = {"sink_tokens": 1, "window_tokens": 10, "strategy": "engine"}
    (bounded.folder / "manifest.json").write_text(json.dumps(manifest))
    result = CliRunner().invoke(cli, ["parity", "sampling", str(bounded.folder), "--limit", "1"])
    assert result.exit_code == 2
    assert "no prompt can be asked" in result.stderr and "the deployment takes 2" in result.stderr
