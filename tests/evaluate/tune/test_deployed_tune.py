"""Tuning a served build through the command line: the schedule it writes is the one that the server follows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from deployed_tiny import MAX_DRAFT_LEN, deployed_tiny
from trtkit.builds import Build
from trtkit.cli.main import cli
from trtkit.client.completion import collect
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.server.triton_server import TritonServer
from trtkit.serving.draft_schedule import FILE, read_schedule

pytestmark = pytest.mark.tritonserver


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return deployed_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def address(build: Build) -> Iterator[str]:
    with TritonServer(build.folder) as server:
        yield server.endpoints.grpc


def tune(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["tune", *map(str, arguments)])


def draft_tokens(address: str) -> int:
    with TritonClient(address) as client:
        return collect(client.generate(GenerateRequest("hello", 24)), str).figures.num_draft_tokens


def test_the_server_follows_the_schedule_that_was_tuned(build: Build, address: str) -> None:
    before = draft_tokens(address)
    assert before > 0
    result = tune(
        build.folder, "--budget", "25", "--concurrency", "1", "--concurrency", "3", "--concurrency", "1", "--json"
    )
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["budget_s"] == 25
    assert [level["concurrency"] for level in document["levels"]] == [1, 3]
    arms = document["levels"][0]["arms"]
    assert [arm["draft_len"] for arm in arms] == list(range(MAX_DRAFT_LEN + 1))
    assert all(arm["acceptance_rate"] == 1.0 for arm in arms[1:])  # the draft has the target's weights
    # A draft step costs what a target step costs, so the plan sees no gain, whatever is accepted.
    assert all(arm["predicted_speedup"] == pytest.approx(1.0) for arm in arms[1:])
    assert document["levels"][0]["predicted"] == 0
    schedule = read_schedule(build.folder)
    assert schedule is not None and schedule.draft_len(1) == document["levels"][0]["recommended"]
    assert (draft_tokens(address) > 0) == (schedule.draft_len(1) > 0)
    assert (build.folder / "tune" / "tune.png").is_file()
    (build.folder / FILE).unlink()
    assert draft_tokens(address) == before


def test_a_server_by_its_address_is_tuned_without_a_schedule(address: str, tmp_path: Path) -> None:
    url = f"grpc://{address}"
    assert tune(url).exit_code == 2
    size = ("--draft-len", "2", "--concurrency", "2", "--budget", "15", "--limit", "3", "--no-plot")
    result = tune(url, *size, "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "2 under way: " in result.stdout and "of 15 s used" in result.stdout
    assert json.loads((tmp_path / "report.json").read_text())["schedule_file"] is None


def test_a_budget_for_nothing_is_refused(build: Build, address: str) -> None:
    result = tune(build.folder, "--budget", "0.001")
    assert (result.exit_code, "--budget" in result.stderr) == (2, True), result.stderr
