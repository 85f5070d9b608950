"""`trtkit bench`."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.table import Table

from trtkit.cli.command_line import command_line
from trtkit.cli.finite_range import FiniteRange
from trtkit.cli.left_out import left_out
from trtkit.cli.output import Output, with_output
from trtkit.cli.prompt_options import prompt_options, taken_choice
from trtkit.evaluate.bench.document import run_name
from trtkit.evaluate.bench.limits import LatencyLimits, refuse_slowness
from trtkit.evaluate.bench.run import DEFAULT_REQUESTS, BenchOptions, bench_deployment, refuse_regression
from trtkit.evaluate.endpoints.deployment import parse_target

_FILE = click.Path(dir_okay=False, path_type=Path)
_POSITIVE = click.IntRange(min=1)
_FIGURE = FiniteRange(min=0, min_open=True)


@click.command()
@click.argument("target", metavar="BUILD|grpc://HOST:PORT")
@prompt_options()
@click.option("--draft-len", "draft_lens", type=_POSITIVE, multiple=True, help="Repeatable; default: the build's.")
@click.option("--concurrency", "concurrencies", type=_POSITIVE, multiple=True, help="Requests under way; repeatable.")
@click.option(
    "--rate",
    "rates",
    type=FiniteRange(min=0, min_open=True),
    multiple=True,
    help="Open loop: requests per second, Poisson arrivals; repeatable.",
)
@click.option("--trace", type=_FILE, help="Open loop: JSONL of requests with their own times, as aiperf has them.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the Poisson arrivals.")
@click.option(
    "--requests", "num_requests", type=_POSITIVE, default=DEFAULT_REQUESTS, show_default=True, help="Per run and round."
)
@click.option("--rounds", type=_POSITIVE, default=2, show_default=True, help="The kinds of load take turns in each.")
@click.option("--cold/--warm", default=True, show_default=True, help="New prompts each time, or the same again.")
@click.option("--oracle", "with_oracle", is_flag=True, help="Measure transformers' generate in the same run.")
@click.option("--plot/--no-plot", default=True, show_default=True, help="Write bench.png.")
@click.option("--baseline", type=_FILE, help="An earlier bench's ratios; exit code 1 when one is worse.")
@click.option("--update-baseline", is_flag=True, help="Write this bench's ratios to the baseline instead.")
@click.option("--max-ttft-ms", type=_FIGURE, help="Median of every run; exit code 1 above. Default: the build's.")
@click.option("--max-tpot-ms", type=_FIGURE, help="Median of every run; exit code 1 above. Default: the build's.")
@click.option("--min-speedup", type=_FIGURE, help="Of every draft length; exit code 1 below. Default: the build's.")
@click.option("--min-acceptance-rate", type=FiniteRange(0, 1), help="Likewise.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="For the report; default BUILD/bench.")
@with_output
def command(output: Output, target: str, **options: Any) -> None:
    """Measure a deployment: the plain target and each draft length take turns in the same run.

    TTFT, TPOT, tokens per second and acceptance by concurrency, the speed-up of speculation, and the draft length to
    use, which is 0 where speculation loses.
    """
    choice = taken_choice(options)
    limits = LatencyLimits(**{field.name: options.pop(field.name) for field in fields(LatencyLimits)})
    document = bench_deployment(
        parse_target(target),
        BenchOptions(choice, limits=limits, **options, command=command_line()),
        on_progress=output.progress,
    )
    output.result(document, render(document))
    refuse_regression(document)
    refuse_slowness(document)


def render(document: Mapping[str, Any]) -> Group:
    """One row per run, then the advice."""
    table = Table("run", box=None, pad_edge=False)
    for title in ("TTFT ms p50", "p95", "TPOT ms p50", "p95", "tokens/s", "speed-up", "acceptance", "tokens/pass"):
        table.add_column(title, justify="right")
    factors = {(s["draft_len"], s["concurrency"]): s["factor"] for s in document["speedups"]}
    for run in document["runs"]:
        factor = factors.get((run["max_draft_len"], run["concurrency"]))
        spreads = [_number((run[key] or {}).get(p), 1) for key in ("ttft_ms", "tpot_ms") for p in ("p50", "p95")]
        table.add_row(
            run_name(run),
            *spreads,
            _number(run["tokens_per_s"], 1),
            _number(factor, 2),
            _number(run["acceptance_rate"], 3),
            _number(run["mean_acceptance_length"], 2),
        )
    advice = [
        f"concurrency {concurrency}: " + (f"best with draft length {k}" if k else "speculation does not pay; use 0")
        for concurrency, k in document["recommended_max_draft_len"].items()
    ]
    return Group(table, *advice, *left_out(document["skipped"]))


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
