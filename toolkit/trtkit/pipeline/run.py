"""Runs a build: resolve, check, digest, then every stage that is not up to date. Knows the order, not the work."""

import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trtkit.artifacts import destination, disk_error, locked, read_record, stage_output
from trtkit.checking import check_config
from trtkit.checking.catalogue import known_codes
from trtkit.checking.deployment import resolve_backend
from trtkit.checking.report import refuse_unknown_codes
from trtkit.config.schema import BuildConfig
from trtkit.doctor import Machine, inspect_machine
from trtkit.engines.build import BuildTools
from trtkit.engines.runner import RunnerName, choose_runner, pinned_image
from trtkit.errors import BuildError
from trtkit.findings import Finding, refuse_errors
from trtkit.launch.files import SERVE
from trtkit.pipeline.calibrate import (
    calibration_runner,
    find_calibrations,
    measured_by_build,
)
from trtkit.pipeline.engine_backend import find_tools
from trtkit.pipeline.inputs import digest_input
from trtkit.pipeline.launch import FOLDER, write_launch
from trtkit.pipeline.manifest import StageResult, known_files, manifest_document, write_manifest
from trtkit.pipeline.out_folder import refuse_to_overwrite
from trtkit.pipeline.request import BuildRequest, gpu_sm
from trtkit.pipeline.sources import resolve_sources
from trtkit.pipeline.stage_findings import stage_findings
from trtkit.pipeline.stages import NOTICED_CODES, Stage, StageName, plan_stages
from trtkit.pipeline.work import Work, work_of_engines, work_of_stages
from trtkit.progress import OnProgress, Progress, silent


@dataclass(frozen=True)
class BuildReport:
    """What a build did; `manifest` is None after `--only`, which finishes no build."""

    out: Path
    stages: tuple[StageResult, ...]
    findings: tuple[Finding, ...]
    manifest: Path | None

    @property
    def next_command(self) -> str:
        """What starts a server on the build: trtkit itself on a CPU, the script of launch/ with GPUs."""
        script = self.out / FOLDER / SERVE
        return shlex.join(["sh", str(script)] if script.is_file() else ["trtkit", "serve", str(self.out)])

    def as_dict(self) -> dict[str, Any]:
        """The record of the `--json` contract."""
        return {
            "schema": "trtkit.build/1",
            "out": str(self.out),
            "stages": [asdict(stage) for stage in self.stages],
            "findings": [finding.as_dict() for finding in self.findings],
            "manifest": str(self.manifest) if self.manifest else None,
        }


@dataclass(frozen=True)
class BuildOptions:
    """How to build, beside the YAML. cache: trtkit's cache directory. where: names the YAML in messages.

    runner: where trtllm-build runs. tools: what engines are built with; None finds it on this machine.
    """

    cache: Path
    where: str
    out: Path | None = None
    only: StageName | None = None
    ignore: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    runner: RunnerName = "local"
    tools: BuildTools | None = None


def prepare(
    config: BuildConfig, options: BuildOptions, on_progress: OnProgress, *, without_weights: bool = False
) -> tuple[BuildRequest, list[Finding]]:
    """Resolve the checkpoints, refuse what cannot work, and digest the inputs. Writes nothing but the hub cache.

    without_weights: checkpoints of which only config.json and tokenizer are on this disk are accepted, and no more than
    that is downloaded. Raises InputError with every finding that makes the deployment impossible.
    """
    machine = inspect_machine()
    resolved, out = _resolved(config, options, machine)
    given = find_calibrations(resolved, out)
    folders, findings = _checked(resolved, options, given, without_weights=without_weights)
    inputs = {
        role: digest_input(role, model, folders[role], known_files(out, role), on_progress)
        for role, model in config.models.items()
    }
    sm = gpu_sm(config, machine.sm if resolved.backend == "engine" else None)
    return BuildRequest(resolved, out, inputs, sm, given, measured_by_build(resolved, inputs, given)), findings


def _resolved(config: BuildConfig, options: BuildOptions, machine: Machine) -> tuple[BuildConfig, Path]:
    """The config with a backend that is not "auto", and the build directory."""
    out = options.out or Path("build") / config.name
    destination(out)  # raises for links that lead to each other
    return config.model_copy(update={"backend": resolve_backend(config, machine)}), out


def _checked(
    resolved: BuildConfig, options: BuildOptions, given: Mapping[str, Path], *, without_weights: bool
) -> tuple[Mapping[str, Path], list[Finding]]:
    """Role -> folder, and what is worth knowing. Raises InputError with all that makes the deployment impossible."""
    refuse_unknown_codes(options.ignore, known_codes() | NOTICED_CODES)
    sources = resolve_sources(resolved, options.cache, given, without_weights=without_weights)
    found = sources.excuse(check_config(resolved, sources.folders, where=options.where))
    findings = [finding for finding in found if finding.code not in options.ignore]
    refuse_errors(findings)
    return sources.folders, findings


def _refuse_missing_tools(config: BuildConfig, options: BuildOptions) -> None:
    """Look for trtllm-build and its GPU before weights are fetched and hashed, which may take hours.

    A directory that has engines may need none anew; then the tools are looked for when that is known.
    """
    if options.tools is not None or options.only not in (None, "engines") or config.backend not in ("auto", "engine"):
        return
    machine = inspect_machine()
    resolved, out = _resolved(config, options, machine)
    if resolved.backend == "engine" and not any(read_record(out / "engines" / role) for role in config.models):
        _checked(resolved, options, find_calibrations(resolved, out), without_weights=True)
        find_tools(BuildRequest(resolved, out, {}, gpu_sm(config, machine.sm)), machine, options.runner, options.cache)


def build(config: BuildConfig, options: BuildOptions, on_progress: OnProgress = silent) -> BuildReport:
    """Bring every stage of the build directory up to date and write the manifest last.

    A stage whose key and files are unchanged is skipped; an interrupted one goes on where it stopped. Raises BuildError
    LOCKED while another process builds into the same directory: their stages would mix.
    """
    started = time.perf_counter()
    _refuse_missing_tools(config, options)
    request, findings = prepare(config, options, on_progress)
    results = [StageResult("check", False, time.perf_counter() - started, 0)]
    if options.only == "check":
        return BuildReport(request.out, tuple(results), tuple(findings), None)
    with locked(request.out):
        return _build(request, (results, findings), options, on_progress)


def _build(
    request: BuildRequest,
    so_far: tuple[list[StageResult], list[Finding]],
    options: BuildOptions,
    on_progress: OnProgress,
) -> BuildReport:
    """Every stage of a checked request. so_far: what the check took, and found."""
    results, findings = so_far
    plan = plan_stages(request)
    stages = [stage for stage in plan if options.only in (None, stage.group)]
    refuse_to_overwrite(request.out, stages)
    if options.only == "convert":
        _refuse_unmeasured(plan)
    work = work_of_stages(request, on_progress)
    for role in request.measured:
        work[f"calibrate {role}"] = calibration_runner(role, request, options.cache, inspect_machine(), on_progress)
    if request.config.backend == "engine":
        work |= _with_tools(request, plan, options, on_progress)
    results += [_run(stage, work[stage.name], on_progress) for stage in stages]
    findings += [finding for finding in stage_findings(stages, request) if finding.code not in options.ignore]
    if options.only is not None:
        return BuildReport(request.out, tuple(results), tuple(findings), None)
    request = replace(request, image=_image(request, options))
    try:
        write_launch(request)
        document = manifest_document(request, options.overrides, options.ignore, findings, results)
        manifest = write_manifest(request.out, document)
    except OSError as error:
        raise disk_error(error, request.out) from error
    return BuildReport(request.out, tuple(results), tuple(findings), manifest)


def _with_tools(
    request: BuildRequest, plan: list[Stage], options: BuildOptions, on_progress: OnProgress
) -> dict[str, Work]:
    """trtllm-build for every engine of the plan. The tools are looked for first: without them no conversion starts."""
    asked = options.only in (None, "engines")
    if not asked or all(stage.is_up_to_date for stage in plan if stage.group == "engines"):
        return {}
    tools = options.tools or find_tools(request, inspect_machine(), options.runner, options.cache)
    return work_of_engines(request, {stage.name: stage.key for stage in plan}, tools, on_progress)


def _image(request: BuildRequest, options: BuildOptions) -> str | None:
    """The image that the engines were built in, which serves them best: tags move."""
    if request.config.backend != "engine" or (options.tools is None and options.runner != "docker"):
        return None
    runner = options.tools.runner if options.tools else choose_runner(options.runner, request.release)
    return pinned_image(runner)


def _refuse_unmeasured(plan: list[Stage]) -> None:
    """With --only, the scales that a conversion takes may be missing, or those of other settings."""
    for stage in plan:
        if stage.group == "calibrate" and not stage.is_up_to_date:
            raise BuildError(
                f"{stage.out} is not measured yet",
                "run the build without --only, or with --only calibrate first",
                code="STAGE-ORDER",
            )


def _run(stage: Stage, work: Work, on_progress: OnProgress) -> StageResult:
    started = time.perf_counter()
    on_progress(Progress(stage.name, 0, 1, "stages"))
    skipped = stage.is_up_to_date
    if not skipped:
        with stage_output(stage.out, stage=stage.name, key=stage.key) as scratch:
            work(scratch)
    on_progress(Progress(stage.name, 1, 1, "stages"))
    record = read_record(stage.out)
    size = sum(record["files"].values()) if record else 0
    return StageResult(stage.name, skipped, time.perf_counter() - started, size)
