"""`trtkit build`."""

from pathlib import Path
from typing import Any, get_args

import click

from trtkit.cli.environment import cache_directory
from trtkit.cli.output import Output, with_output
from trtkit.config.load import load_config
from trtkit.config.schema import Backend
from trtkit.engines.runner import RunnerName
from trtkit.launch.script import folded
from trtkit.pipeline.dry_run import PlannedStage, dry_run
from trtkit.pipeline.launch import BUILD_ENGINES
from trtkit.pipeline.run import BuildOptions, BuildReport, build
from trtkit.pipeline.stages import STAGE_NAMES, StageName


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--backend", type=click.Choice(get_args(Backend)), help="Instead of the YAML's.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Instead of build/<name>.")
@click.option("--only", type=click.Choice(STAGE_NAMES), help="Run one stage; needs those before it.")
@click.option(
    "--runner",
    type=click.Choice(get_args(RunnerName)),
    default="local",
    show_default=True,
    help="Where trtllm-build runs: here, or in the release's container (docker or podman).",
)
@click.option("--dry-run", "dry", is_flag=True, help="Check, and print every command and file; write nothing.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Instead of the YAML's; may be repeated.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Build in spite of this finding; kept in the manifest.")
@with_output
def command(output: Output, config: Path, overrides: tuple[str, ...], dry: bool, **choices: Any) -> None:
    """Build the deployment that CONFIG describes: check, calibrate, convert, engines, tokenizer, repository,
    manifest. Only models that need measured scales, and have none, are calibrated.

    A stage whose inputs have not changed is skipped; an interrupted build continues when it is run again.
    """
    overrides += (f"backend={choices['backend']}",) if choices["backend"] else ()
    request = load_config(config, overrides)
    options = _options(config, overrides, choices)
    if dry:
        planned = dry_run(request, options, output.progress)
        output.result({"schema": "trtkit.dry-run/1", "stages": [s.as_dict() for s in planned]}, _planned(planned))
    else:
        report = build(request, options, output.progress)
        output.result(report.as_dict(), _done(report))


def _options(config: Path, overrides: tuple[str, ...], choices: dict[str, Any]) -> BuildOptions:
    only: StageName | None = choices["only"]
    return BuildOptions(
        cache=cache_directory(),
        where=str(config),
        out=choices["out"],
        only=only,
        ignore=choices["ignore"],
        overrides=overrides,
        runner=choices["runner"],
    )


def _planned(stages: list[PlannedStage]) -> str:
    lines = []
    for stage in stages:
        lines.append(f"{stage.stage:18}{'up to date' if stage.skipped else 'run':12}{stage.out}")
        lines += [f"{'':30}{name}" for name in stage.files]
    lines += [f"\n# {stage.stage}\n{folded(stage.command)}" for stage in stages if stage.command]
    launch = next((stage for stage in stages if stage.stage == "launch"), None)
    texts = launch.texts if launch else {}
    # What build-engines.sh holds stands above.
    scripts = [f"\n# {name}\n{text}".rstrip() for name, text in texts.items() if name != BUILD_ENGINES]
    return "\n".join([*lines, *scripts])


def _done(report: BuildReport) -> str:
    lines = [f"{finding.severity}: {finding.code}: {finding.cause}" for finding in report.findings]
    for stage in report.stages:
        took = "up to date" if stage.skipped else f"{stage.seconds:.1f} s"
        lines.append(f"{stage.stage:18}{took:12}{f'{stage.bytes / 2**20:,.1f} MiB' if stage.bytes else ''}".rstrip())
    if report.manifest is not None:
        lines.append(f"{report.out}\nnext  {report.next_command}")
    return "\n".join(lines)
