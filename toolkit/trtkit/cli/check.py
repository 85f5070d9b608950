"""`trtkit check`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.table import Table

from trtkit.checking.raised import finding_of
from trtkit.checking.report import CheckReport
from trtkit.checking.target import CheckOptions, check_target
from trtkit.checkpoints.source import expanded
from trtkit.cli.environment import cache_directory
from trtkit.cli.output import Output, with_output
from trtkit.engines.inspect import read_engine
from trtkit.engines.runtime import RankSummary, can_open, summarise_engine
from trtkit.errors import ConfigError, InputError


@click.command()
@click.argument("target")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Instead of the YAML's; may be repeated.")
@click.option("--strict", is_flag=True, help="Warnings fail too.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Leave out this finding; may be repeated.")
@click.option(
    "--open/--no-open",
    "opened",
    default=None,
    help="Open an engine with TensorRT: its layers, precisions and memory. Default: where TensorRT is installed.",
)
@click.option(
    "--against",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Hold the KV scales of a checkpoint, TensorRT-LLM's or Hugging Face's, against those of another one.",
)
@with_output
def command(output: Output, target: str, overrides: tuple[str, ...], opened: bool | None, **choices: Any) -> int:
    """Say what is impossible about TARGET, and why, before any work.

    TARGET is a build YAML, a Hugging Face or TensorRT-LLM checkpoint, an engine directory, a Triton model repository
    or a build directory. Exits with 2 when there are errors.
    """
    options = CheckOptions(cache_directory(), overrides, choices["strict"], choices["ignore"])
    try:
        report = check_target(target, options)
    except ConfigError as error:
        if output.as_json:  # programs read what is wrong where they read everything else
            output.result(CheckReport("YAML", (finding_of(error, target),), (), options.strict).as_dict(), "")
        raise
    ranks = _open(report, target, opened)
    document = report.as_dict() | ({"engine": [asdict(rank) for rank in ranks]} if ranks else {})
    shown: list[Any] = [render(report, target), *map(render_rank, ranks)]
    if choices["against"] is not None:
        record, table = _against(expanded(target), choices["against"])
        document |= {"comparison": record}
        shown.append(table)
    output.result(document, Group(*shown) if len(shown) > 1 else shown[0])
    return 0 if report.ok else 2


def _open(report: CheckReport, target: str, demanded: bool | None) -> list[RankSummary]:
    """What TensorRT finds in an engine directory; None opens one that is sound, where TensorRT is installed."""
    if demanded and report.kind != "engine":
        raise InputError(
            f"--open is for an engine directory; {target} is a {report.kind}", "leave out --open", code="CHECK-OPEN"
        )
    if report.kind != "engine" or demanded is False or not (demanded or report.ok):
        return []
    info = read_engine(expanded(target))
    if demanded or (info.checkpoint is None and can_open()):
        return summarise_engine(info)
    return []


def _against(folder: Path, other: Path) -> tuple[dict[str, Any], Table]:
    from trtkit.calibration.compare import compare_checkpoints
    from trtkit.cli.scale_table import comparison_table

    comparison = compare_checkpoints(folder, other)
    return comparison.as_dict(), comparison_table(comparison, "here")


def render_rank(rank: RankSummary) -> Table:
    """What one rank's engine holds."""
    table = Table(title=f"rank {rank.rank}", title_justify="left", box=None, pad_edge=False, show_header=False)
    table.add_row("file", f"{rank.file_bytes / 2**20:,.1f} MiB")
    table.add_row("activations", f"{rank.device_bytes / 2**20:,.1f} MiB of GPU memory for each context")
    table.add_row("layers", ", ".join(f"{count} x {kind}" for kind, count in rank.layers.items()))
    detail = "not recorded (built without detailed verbosity)"
    table.add_row("outputs", ", ".join(f"{count} x {kind}" for kind, count in rank.precisions.items()) or detail)
    for name, form in rank.tensors.items():
        table.add_row("tensor", _plain(f"{name} {form}"))
    return table


def render(report: CheckReport, target: str) -> Group | str:
    """The findings as a table, worst first."""
    ignored = f", {len(report.ignored)} ignored" if report.ignored else ""
    if not report.findings:
        return f"{target} ({report.kind}): nothing found{ignored}"
    styles = {"error": "bold red", "warning": "yellow", "note": "cyan"}
    table = Table("", "code", "finding", box=None, pad_edge=False, show_header=False)
    for finding in report.findings:
        text = f"{finding.where}\n{finding.cause}\nfix: {finding.fix}"
        table.add_row(f"[{styles[finding.severity]}]{finding.severity}", finding.code, _plain(text))
    counts = [
        f"{number} {severity}{'s' if number != 1 else ''}"
        for severity in ("error", "warning", "note")
        if (number := sum(finding.severity == severity for finding in report.findings))
    ]
    return Group(table, _plain(f"{target} ({report.kind}): {', '.join(counts)}{ignored}"))


def _plain(text: str) -> str:
    """Text with rich's markup characters made harmless."""
    return text.replace("[", "\\[")
