"""The CI examples of the docs: valid YAML, and every trtkit command in them is one that the command line accepts."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from trtkit.cli.main import cli

DOCS = Path(__file__).resolve().parents[1] / "docs"


def lines_of(document: Any) -> Iterator[str]:
    """Every string of a YAML document."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for value in document.values():
            yield from lines_of(value)
    elif isinstance(document, list):
        for value in document:
            yield from lines_of(value)


@pytest.mark.parametrize("name", ["ci-github.yml", "ci-gitlab.yml"])
def test_the_commands_of_an_example_parse(name: str) -> None:
    commands = [line for line in lines_of(yaml.safe_load((DOCS / name).read_text())) if line.startswith("trtkit ")]
    assert {line.split()[1] for line in commands} == {"demo", "build", "parity", "bench"}
    for line in commands:
        command: click.Command = cli
        arguments = shlex.split(line)[1:]
        while isinstance(command, click.Group):
            found = command.get_command(click.Context(command), arguments.pop(0))
            assert found is not None, line
            command = found
        command.make_context("trtkit", arguments).close()


def test_the_github_example_runs_on_pull_requests_and_shows_both_summaries() -> None:
    # YAML 1.1 reads the key `on` as true.
    document = yaml.safe_load((DOCS / "ci-github.yml").read_text())
    assert document[True] == ["pull_request"]
    (job,) = document["jobs"].values()
    text = " ".join(str(step.get("run", "")) for step in job["steps"])
    assert "parity/summary.md" in text and "bench/summary.md" in text and "GITHUB_STEP_SUMMARY" in text


def test_the_gitlab_example_hands_both_junit_files_over() -> None:
    reports = yaml.safe_load((DOCS / "ci-gitlab.yml").read_text())["verify"]["artifacts"]["reports"]
    assert [Path(path).parts[-2:] for path in reports["junit"]] == [("parity", "junit.xml"), ("bench", "junit.xml")]
