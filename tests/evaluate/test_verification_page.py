"""The pages of verification and calibration name every option, JSON key and error code, and none that is gone."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from documented_reports import PAGE, blocks, documented_keys
from trtkit.cli.main import cli
from trtkit.evaluate.bench.speedup import WORTHWHILE
from trtkit.evaluate.checkpoint.drift import ALLOWANCE
from trtkit.evaluate.endpoints.patience import LONGEST_SILENCE_S
from trtkit.evaluate.oracle.tolerance import DEVIATIONS
from trtkit.prompts.files import GROUPS, shipped_prompts

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "toolkit" / "trtkit"
COMMANDS = {"parity": PAGE, "bench": PAGE, "tune": PAGE, "calibrate": PAGE.with_name("calibration.md")}


def options_of(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """(command, option) for each option, subcommands included."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            yield from options_of(inner, f"{path} {name}")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from ((path, option) for option in (*parameter.opts, *parameter.secondary_opts))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_on_the_page(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    page = COMMANDS[name].read_text(encoding="utf-8")
    said = set(re.findall(r"--[a-z][a-z-]*", page))
    assert {option for _, option in options_of(command, name)} - said - {"--help", "-h"} == set()


@pytest.mark.parametrize("schema", sorted(blocks()))
def test_every_key_on_the_page_is_in_the_sources(schema: str) -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))
    assert schema in sources
    assert {key for key in documented_keys(schema) if not re.search(rf"\b{key}\b", sources)} == set()


@pytest.mark.parametrize(
    ("page", "packages"), [("verification", ("evaluate", "prompts")), ("calibration", ("calibration",))]
)
def test_every_code_is_in_the_table_of_errors(page: str, packages: tuple[str, ...]) -> None:
    folders = [SOURCES / package for package in packages]
    sources = "".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py"))
    table = PAGE.with_name(f"{page}.md").read_text(encoding="utf-8").partition("\n## Errors\n")[2]
    rows = "".join(line.split("|")[1] for line in table.partition("\n## ")[0].splitlines() if line.startswith("| `"))
    raised = set(re.findall(r'\bcode(?:: str)? ?= ?"([A-Z-]+)"', sources))
    said = set(re.findall("`([A-Z-]+)`", rows))
    # What converting and reading a checkpoint may raise is on the pages of these.
    assert {code for code in raised if not code.startswith(("CKPT-", "CONV-"))} <= said
    everywhere = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))
    assert {code for code in said if f'"{code}"' not in everywhere} == set()


def test_the_figures_of_the_page_are_those_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert LONGEST_SILENCE_S == 600 and "for ten minutes" in page
    assert f"margin <= {DEVIATIONS:g} * e" in PAGE.with_name("tolerance.md").read_text(encoding="utf-8")
    assert ALLOWANCE == 3 and "Rounding explains three times" in page
    assert f"a speed-up of {WORTHWHILE:g}" in page
    assert (len(shipped_prompts()), len(GROUPS)) == (37, 7) and "Thirty-seven shipped ones in seven groups" in page
