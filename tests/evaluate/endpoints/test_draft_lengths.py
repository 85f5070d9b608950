"""Draft lengths that a build cannot draft are refused before an oracle or a server is asked for anything."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from deployed_tiny import MAX_DRAFT_LEN, deployed_tiny
from trtkit.builds import Build
from trtkit.cli.main import cli


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return deployed_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("command", ["parity check", "parity check --in-process", "parity sampling", "bench", "tune"])
def test_more_than_the_builds_length_is_refused_at_once(command: str, build: Build) -> None:
    asked = ["--draft-len", "1", "--draft-len", str(MAX_DRAFT_LEN + 1)]
    result = CliRunner().invoke(cli, [*command.split(), str(build.folder), *asked])
    assert result.exit_code == 2
    assert f"SPEC-K: {build.folder} drafts at most {MAX_DRAFT_LEN} tokens" in result.stderr
    left = {path.name for path in Path(build.folder).iterdir()}
    assert left & {"parity", "bench", "tune", "logs", "draft_schedule.json"} == set()
