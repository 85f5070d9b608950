"""`trtkit calibrate`: parse, call, show."""

from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from trtkit.calibration.outliers import in_percent
from trtkit.calibration.price import Price
from trtkit.calibration.report import CalibrationReport, sum_of_advice
from trtkit.calibration.scales import METHODS, ScaleMethod
from trtkit.cli.environment import cache_directory
from trtkit.cli.output import Output, with_output
from trtkit.cli.scale_table import comparison_table
from trtkit.config.load import load_config
from trtkit.config.schema import Dtype


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Instead of build/<name>/calibration.")
@click.option("--only", type=click.Choice(["target", "draft"]), help="Calibrate one of the two models.")
@click.option(
    "--method", type=click.Choice(METHODS), default=ScaleMethod.name, show_default=True, help="How limits are chosen."
)
@click.option("--percentile", default=ScaleMethod.percentile, show_default=True, help="For --method percentile.")
@click.option("--dtype", type=click.Choice(get_args(Dtype)), help="Of the computation; instead of the model's.")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--price", is_flag=True, help="Also measure what each KV precision costs, on held-out texts.")
@click.option("--modelopt", is_flag=True, help="Also quantise as the YAML says, with nvidia-modelopt.")
@click.option(
    "--compare",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Hold the KV scales of a checkpoint (converted or quantised; of the target, or of --only) against the"
    " measured ones.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Instead of the YAML's; may be repeated.")
@with_output
def command(output: Output, config: Path, overrides: tuple[str, ...], **choices: Any) -> None:
    """Measure the models of CONFIG on calibration texts: KV and activation scales, outliers, advice.

    Writes calibration.json (for the conversion), report.json and outliers.png for each model. Interrupted, it goes on
    where it stopped when it is run again. docs/calibration.md explains every number.
    """
    from trtkit.calibration.jobs import Choices, plan_calibrations, run_calibrations

    planned = plan_calibrations(load_config(config, overrides), cache_directory(), Choices(**choices))
    reports = run_calibrations(planned, output.progress)
    document = {"schema": "trtkit.calibrate/1", "models": {role: report.as_dict() for role, report in reports.items()}}
    output.result(document, Group(*(render(role, report) for role, report in reports.items())))


def render(role: str, report: CalibrationReport) -> Group:
    """One line per layer, then the advice."""
    title = f"{role}: {report.measured.checkpoint}, {report.measured.num_tokens} tokens, {report.measured.dtype}"
    table = Table("layer", "max |k|", "max |v|", "KV scale", "k ratio", "v ratio", "k noise", "v noise", box=None)
    for layer in report.layers:
        k, v = layer.of("k"), layer.of("v")
        noise = [in_percent(advice.noise) for advice in layer.advice[:2]]
        figures = (k.amax, v.amax, report.kv_scales.get(layer.layer))
        ratios = (f"{k.ratio:.1f}", f"{v.ratio:.1f}")
        shown = ("-" if figure is None else f"{figure:.4g}" for figure in figures)
        table.add_row(str(layer.layer), *shown, *ratios, *noise)
    advice = ", ".join(f"{count} x {action}" for action, count in sorted(sum_of_advice(report.layers).items()))
    lines = [f"{finding.severity}: {finding.code}: {finding.cause}" for finding in report.findings]
    lines += [f"modelopt wrote {report.modelopt}"] if report.modelopt else []
    lines += [f"cache   {report.cache_reason}", f"inputs  {advice}", f"wrote   {report.out}"]
    extra = [_prices(report)] if report.prices else []
    extra += [comparison_table(report.comparison, "measured")] if report.comparison else []
    return Group(Text(title), table, *extra, *map(Text, lines))


def _prices(report: CalibrationReport) -> Table:
    table = Table("KV cache", "bytes per token", "perplexity", "+-", "KL", "", box=None)
    for price in report.prices:
        if isinstance(price, Price):
            quality = [f"{price.perplexity:.3f}", f"{price.perplexity_error:.3f}", f"{price.kl:.5f}"]
        else:
            quality = ["-", "-", "-", escape(f"{price.code}: {price.cause}")]
        table.add_row(price.name, f"{price.bytes_per_token:,}", *quality)
    return table
