"""What a build would do: stages, whether they are up to date, and the files each writes. Writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtkit.checkpoints.quantized import QUANT_FILE
from trtkit.config.schema import BuildConfig
from trtkit.conversion.hf_files import hf_files
from trtkit.conversion.report import MANIFEST_NAME
from trtkit.pipeline.calibrate import FILES as CALIBRATION_FILES
from trtkit.pipeline.engine_backend import planned_command
from trtkit.pipeline.launch import FOLDER, launch_texts
from trtkit.pipeline.out_folder import refuse_to_overwrite
from trtkit.pipeline.rendering import repository_texts
from trtkit.pipeline.request import BuildRequest
from trtkit.pipeline.run import BuildOptions, prepare
from trtkit.pipeline.stages import Stage, plan_stages
from trtkit.pipeline.tokenizer import tokenizer_files
from trtkit.progress import OnProgress, silent


@dataclass(frozen=True)
class PlannedStage:
    """One stage: its directory, whether it would be skipped, and the files it writes, relative to the directory.

    command is what the stage runs, paths relative to the build directory. texts holds the files that are known
    beforehand: file -> text.
    """

    stage: str
    out: Path
    skipped: bool
    files: tuple[str, ...]
    command: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The record of `build --dry-run --json`."""
        return {
            "stage": self.stage,
            "out": str(self.out),
            "skipped": self.skipped,
            "files": list(self.files),
            "command": list(self.command),
            "texts": dict(self.texts),
        }


def dry_run(config: BuildConfig, options: BuildOptions, on_progress: OnProgress = silent) -> list[PlannedStage]:
    """Check the request and list the work; needs config.json and tokenizer of the checkpoints, not their weights.

    Raises what a build would raise before its first stage, except for tools that this machine lacks.
    """
    request, _ = prepare(config, options, on_progress, without_weights=True)
    stages = [stage for stage in plan_stages(request) if options.only in (None, stage.group)]
    refuse_to_overwrite(request.out, stages)
    planned = [_planned(stage, request) for stage in stages]
    launch = launch_texts(request) if options.only is None else {}
    if launch:
        planned.append(PlannedStage("launch", request.out / FOLDER, False, tuple(launch), texts=launch))
    return planned


def _planned(stage: Stage, request: BuildRequest) -> PlannedStage:
    texts = _texts(stage, request)
    files = tuple(texts) or _files(stage, request)
    return PlannedStage(stage.name, stage.out, stage.is_up_to_date, files, _command(stage, request), texts)


def _command(stage: Stage, request: BuildRequest) -> tuple[str, ...]:
    if stage.group != "engines" or request.config.backend != "engine":
        return ()
    return tuple(planned_command(stage.name.split()[-1], request))


def _texts(stage: Stage, request: BuildRequest) -> dict[str, str]:
    if stage.group != "repository":
        return {}
    return repository_texts(request)


def _files(stage: Stage, request: BuildRequest) -> tuple[str, ...]:
    role = stage.name.split()[-1]
    if stage.group == "tokenizer":
        return tokenizer_files(request.inputs["target"].folder)
    if stage.group == "calibrate":
        return CALIBRATION_FILES
    model = request.config.models[role]
    ranks = range(model.tensor_parallel * model.pipeline_parallel)
    if stage.group == "convert" and request.config.backend == "llmapi":
        copied = hf_files(request.inputs[role].folder)
        return tuple(sorted({*copied, MANIFEST_NAME, QUANT_FILE, "model.safetensors"}))
    if stage.group == "convert":
        return ("config.json", MANIFEST_NAME, *(f"rank{rank}.safetensors" for rank in ranks))
    return ("config.json", *(f"rank{rank}.engine" for rank in ranks if request.config.backend == "engine"))
