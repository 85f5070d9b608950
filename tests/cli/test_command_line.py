"""The command that a report quotes is the one that was given, also to a process that has arguments of its own."""

import shlex
import sys

import click
import pytest
from click.testing import CliRunner
from trtkit.cli.command_line import command_line
from trtkit.cli.main import cli


@pytest.fixture
def quoting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every subcommand becomes one that prints what it would quote."""

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("rest", nargs=-1)
    def command(rest: tuple[str, ...]) -> None:
        click.echo(command_line())

    monkeypatch.setattr(cli, "get_command", lambda ctx, name: command)


@pytest.mark.parametrize("own", [[], ["tests", "-x"]])
@pytest.mark.parametrize("given", [["bench", "my build", "--limit", "3"], ["parity", "check", "b", "--json"]])
@pytest.mark.usefixtures("quoting")
def test_the_quoted_command_is_the_given_one(own: list[str], given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest", *own])
    assert shlex.split(CliRunner().invoke(cli, given).stdout) == ["trtkit", *given]


@pytest.mark.usefixtures("quoting")
def test_of_a_process_it_is_its_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trtkit", "tune", "build", "--budget", "60"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().out.strip() == "trtkit tune build --budget 60"
