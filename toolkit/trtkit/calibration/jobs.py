"""The calibrations that a build config asks for: which checkpoints, where to, with which options; and running them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import torch

from trtkit.calibration.calibration_file import ScaleOptions
from trtkit.calibration.number_formats import Format
from trtkit.calibration.report import CalibrationReport
from trtkit.calibration.run import CalibrationOptions, Prepared, prepare, run_prepared
from trtkit.calibration.samples import SampleOptions
from trtkit.calibration.scales import Method, ScaleMethod
from trtkit.calibration.texts import CalibrationText, read_texts
from trtkit.checkpoints.source import resolve_checkpoint
from trtkit.config.schema import BuildConfig
from trtkit.conversion.modelopt_limits import ModeloptOptions, ModeloptQuantization
from trtkit.errors import InputError, MissingToolError
from trtkit.progress import OnProgress, Progress, silent

FOLDER_NAME = "calibration"


@dataclass(frozen=True)
class PlannedCalibration:
    """One checkpoint; `texts` is a user's file, or None for those that trtkit ships."""

    checkpoint: Path
    out: Path
    options: CalibrationOptions
    texts: Path | None


@dataclass(frozen=True)
class Choices:
    """What the command line decides besides the config. out and dtype: None takes what follows from the config.

    compare: a checkpoint of the first of the models that has KV scales.
    """

    out: Path | None = None
    only: str | None = None
    method: Method = ScaleMethod.name
    percentile: float = ScaleMethod.percentile
    dtype: str | None = None
    device: str = "cpu"
    price: bool = False
    modelopt: bool = False
    compare: Path | None = None


def plan_calibrations(config: BuildConfig, cache: Path, choices: Choices) -> dict[str, PlannedCalibration]:
    """Role -> what to do. Raises InputError for a role the config lacks, a percentile outside (0, 100] or
    beside another method, or a name of no device, MissingToolError for a device that is not there.
    """
    if choices.only is not None and choices.only not in config.models:
        raise InputError(f"the config has no {choices.only}", "leave out --only", code="CALIB-ROLE")
    _refuse_percentile(choices)
    _refuse_absent_device(choices.device)
    folder = choices.out or Path("build") / config.name / FOLDER_NAME
    roles = [role for role in config.models if choices.only in (None, role)]
    return {
        role: PlannedCalibration(
            checkpoint=resolve_checkpoint(config.models[role].checkpoint, cache, config.models[role].revision),
            out=folder / role,
            options=_options(role, config, choices, compare=choices.compare if role == roles[0] else None),
            texts=Path(config.calibration.prompts) if config.calibration.prompts else None,
        )
        for role in roles
    }


def _refuse_percentile(choices: Choices) -> None:
    if not 0 < choices.percentile <= 100:
        raise InputError(
            f"--percentile {choices.percentile} is not in (0, 100]", "99.9 to 99.999 are usual", code="CALIB-OPTION"
        )
    if choices.percentile != ScaleMethod.percentile and choices.method != "percentile":
        raise InputError(
            f"--percentile {choices.percentile} says nothing to --method {choices.method}",
            "add --method percentile, or leave out --percentile",
            code="CALIB-OPTION",
        )


def _refuse_absent_device(name: str) -> None:
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise InputError(f"--device {name} is neither cpu nor cuda", "write cpu, cuda or cuda:1", code="CALIB-OPTION")
    if kind == "cuda" and not torch.cuda.is_available():
        raise MissingToolError(
            "torch finds no GPU here",
            "leave out --device, or install a torch that is built for CUDA",
            code="GPU-MISSING",
        )


def _options(role: str, config: BuildConfig, choices: Choices, compare: Path | None) -> CalibrationOptions:
    given, model = config.calibration, config.models[role]
    kv_format: Format = "fp8" if config.kv_cache.dtype == "auto" else config.kv_cache.dtype
    return CalibrationOptions(
        dtype=choices.dtype or model.dtype,
        device=choices.device,
        samples=SampleOptions(given.samples, given.max_len, given.seed),
        scales=ScaleOptions(ScaleMethod(choices.method, choices.percentile), kv_format),
        price=choices.price,
        modelopt=_modelopt(role, config, choices) if choices.modelopt else None,
        compare=compare,
    )


def _modelopt(role: str, config: BuildConfig, choices: Choices) -> ModeloptOptions:
    model = config.models[role]
    if model.quantization not in get_args(ModeloptQuantization):
        raise InputError(
            f"{role}.quantization is {model.quantization}, which needs no nvidia-modelopt",
            f"use one of {', '.join(get_args(ModeloptQuantization))}, leave out --modelopt, or use --only",
            code="CALIB-MODELOPT",
        )
    return ModeloptOptions(
        quantization=cast(ModeloptQuantization, model.quantization),
        fp8_kv_cache=config.kv_cache.dtype == "fp8",
        dtype=model.dtype,
        tensor_parallel=model.tensor_parallel,
        pipeline_parallel=model.pipeline_parallel,
        format="hf" if config.backend == "llmapi" else "tensorrt_llm",
        device=choices.device,
    )


def run_calibrations(
    planned: Mapping[str, PlannedCalibration], on_progress: OnProgress = silent
) -> dict[str, CalibrationReport]:
    """Run them in order, when nothing stands in the way of any; progress events carry the role in their stage."""
    prepared = {role: prepare(job.checkpoint, job.options, _texts_of(job)) for role, job in planned.items()}
    return {role: _run(role, prepared[role], job.out, on_progress) for role, job in planned.items()}


def _texts_of(job: PlannedCalibration) -> list[CalibrationText] | None:
    return None if job.texts is None else read_texts(job.texts)


def _run(role: str, prepared: Prepared, out: Path, on_progress: OnProgress) -> CalibrationReport:
    def renamed(event: Progress) -> None:
        on_progress(Progress(f"{event.stage} {role}", event.done, event.total, event.unit))

    return run_prepared(prepared, out, renamed)
