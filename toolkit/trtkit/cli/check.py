"""`trtkit check`."""

import click
from rich.console import Group
from rich.table import Table

from trtkit.checking.report import CheckReport
from trtkit.checking.target import CheckOptions, check_target
from trtkit.cli.environment import cache_directory
from trtkit.cli.output import Output, with_output


@click.command()
@click.argument("target")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Instead of the YAML's; may be repeated.")
@click.option("--strict", is_flag=True, help="Warnings fail too.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Leave out this finding; may be repeated.")
@with_output
def command(output: Output, target: str, overrides: tuple[str, ...], strict: bool, ignore: tuple[str, ...]) -> int:
    """Say what is impossible about TARGET, and why, before any work.

    TARGET is a build YAML, a Hugging Face or TensorRT-LLM checkpoint, an engine directory, a Triton model repository
    or a build directory. Exits with 2 when there are errors.
    """
    report = check_target(target, CheckOptions(cache_directory(), overrides, strict, ignore))
    output.result(report.as_dict(), render(report, target))
    return 0 if report.ok else 2


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
