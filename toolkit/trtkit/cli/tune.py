"""`trtkit tune`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from trtkit.cli.command_line import command_line
from trtkit.cli.finite_range import FiniteRange
from trtkit.cli.left_out import left_out
from trtkit.cli.output import Output, with_output
from trtkit.cli.prompt_options import prompt_options, taken_choice
from trtkit.evaluate.endpoints.deployment import parse_target
from trtkit.evaluate.tune.html import advice_of
from trtkit.evaluate.tune.run import DEFAULT_BUDGET_S, TuneOptions, tune_deployment

_FILE = click.Path(dir_okay=False, path_type=Path)
_POSITIVE = click.IntRange(min=1)


@click.command()
@click.argument("target", metavar="BUILD|grpc://HOST:PORT")
@prompt_options()
@click.option(
    "--draft-len", "draft_lens", type=_POSITIVE, multiple=True, help="Repeatable; default: up to the build's."
)
@click.option(
    "--concurrency", "concurrencies", type=_POSITIVE, multiple=True, help="Loads; repeatable; default: 1, 2, 4, ..."
)
@click.option(
    "--budget",
    "budget_s",
    type=FiniteRange(min=0, min_open=True),
    default=DEFAULT_BUDGET_S,
    show_default=True,
    help="Seconds for the whole sweep.",
)
@click.option("--cold/--warm", default=True, show_default=True, help="New prompts each time, or the same again.")
@click.option("--apply/--no-apply", default=True, show_default=True, help="Write the schedule that BUILD is served by.")
@click.option("--plot/--no-plot", default=True, show_default=True, help="Write tune.png.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="For the report; default BUILD/tune.")
@with_output
def command(output: Output, target: str, **options: Any) -> None:
    """Find the draft length for each load, which is off where speculation loses, and serve by it.

    Successive halving inside --budget: every length gets some requests, the better half twice as many, and so on, with
    the plain target beside them. BUILD gets draft_schedule.json, which a running server takes up at once.
    """
    choice = taken_choice(options)
    document = tune_deployment(
        parse_target(target), TuneOptions(choice, **options, command=command_line()), on_progress=output.progress
    )
    output.result(document, render(document))


def render(document: Mapping[str, Any]) -> Group:
    """One row per length and load, then the advice."""
    table = Table("under way", "draft length", box=None, pad_edge=False)
    for title in ("requests", "tokens/s", "speed-up", "95 % interval", "predicted", "acceptance"):
        table.add_column(title, justify="right")
    for level in document["levels"]:
        for arm in level["arms"]:
            best = arm["draft_len"] == level["recommended"]
            interval = arm["speedup_interval"]
            cells = (
                f"{arm['tokens_per_s']:.1f}",
                _number(arm["speedup"]),
                "" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}",
                _number(arm["predicted_speedup"]),
                _number(arm["acceptance_rate"]),
            )
            draft_len = Text(str(arm["draft_len"] or "off"), style="bold green" if best else "")
            table.add_row(str(level["concurrency"]), draft_len, str(arm["num_requests"]), *cells)
    lines = [Text(advice_of(level), style="bold") for level in document["levels"]]
    used = Text(f"{document['elapsed_s']:.0f} of {document['budget_s']:.0f} s used")
    file = document["schedule_file"]
    return Group(table, *lines, *left_out(document["skipped"]), used, *([Text(f"schedule: {file}")] if file else []))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
