"""Every trtkit command printed in the README and docs is one that the command line accepts."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from trtkit.cli.main import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "triton" / "README.md"]


def documented_commands() -> Iterator[tuple[str, str]]:
    """(page, command) for each `trtkit ...` in a fenced block; a trailing comment and a && chain are cut off."""
    for page in PAGES:
        if not page.exists():
            continue
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                for part in line.split("&&"):
                    command = re.sub(r"\s+#.*$", "", part.strip()).removeprefix("$ ").removeprefix(".venv/bin/")
                    if re.match(r"trtkit\s+[a-z]", command):
                        yield page.name, command


COMMANDS = sorted(set(documented_commands()))


def parse(command: click.Command, arguments: list[str], parent: click.Context | None = None) -> None:
    """Parse as click would, without running anything."""
    if isinstance(command, click.Group):
        inner = command.get_command(click.Context(command), arguments[0])
        assert inner is not None, f"no command {arguments[0]}"
        parse(inner, arguments[1:], parent)
        return
    command.make_context(command.name or "trtkit", arguments, parent=parent).close()


def test_there_are_documented_commands() -> None:
    assert len(COMMANDS) > 5


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: str(value))
def test_a_documented_command_parses(page: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    try:
        parse(cli, shlex.split(command)[1:])
    except click.exceptions.Exit:
        pass  # --help and --list
    except click.ClickException as error:
        pytest.fail(f"{page}: {command}: {error.format_message()}")


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^```bash\n(.*?)\n```", readme, flags=re.M | re.S)
    assert len(commands) == 2, "the README opens with two commands"
    assert commands[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
