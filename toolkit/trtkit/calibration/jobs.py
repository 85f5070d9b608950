"""The calibrations that a build config asks for: which checkpoints, where to, with which options; and running them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtkit.calibration.calibration_file import ScaleOptions
from trtkit.calibration.number_formats import Format
from trtkit.calibration.report import CalibrationReport
from trtkit.calibration.run import CalibrationOptions, calibrate
from trtkit.calibration.samples import SampleOptions
from trtkit.calibration.scales import Method, ScaleMethod
from trtkit.calibration.texts import read_texts
from trtkit.checkpoints.source import resolve_checkpoint
from trtkit.config.schema import BuildConfig
from trtkit.errors import InputError
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
    """What the command line decides besides the config. out and dtype: None takes what follows from the config."""

    out: Path | None = None
    only: str | None = None
    method: Method = "amax"
    percentile: float = 99.99
    dtype: str | None = None
    device: str = "cpu"
    price: bool = False


def plan_calibrations(config: BuildConfig, cache: Path, choices: Choices) -> dict[str, PlannedCalibration]:
    """Role -> what to do. Raises InputError for a role the config lacks or a percentile outside (0, 100]."""
    if choices.only is not None and choices.only not in config.models:
        raise InputError(f"the config has no {choices.only}", "leave out --only", code="CALIB-ROLE")
    if not 0 < choices.percentile <= 100:
        raise InputError(
            f"--percentile {choices.percentile} is not in (0, 100]", "99.9 to 99.999 are usual", code="CALIB-OPTION"
        )
    given = config.calibration
    folder = choices.out or Path("build") / config.name / FOLDER_NAME
    kv_format: Format = "fp8" if config.kv_cache.dtype == "auto" else config.kv_cache.dtype
    scales = ScaleOptions(ScaleMethod(choices.method, choices.percentile), kv_format)
    samples = SampleOptions(given.samples, given.max_len, given.seed)
    return {
        role: PlannedCalibration(
            checkpoint=resolve_checkpoint(model.checkpoint, cache, model.revision),
            out=folder / role,
            options=CalibrationOptions(choices.dtype or model.dtype, choices.device, samples, scales, choices.price),
            texts=Path(given.prompts) if given.prompts else None,
        )
        for role, model in config.models.items()
        if choices.only in (None, role)
    }


def run_calibrations(
    planned: Mapping[str, PlannedCalibration], on_progress: OnProgress = silent
) -> dict[str, CalibrationReport]:
    """Run them in order; progress events carry the role in their stage."""
    return {role: _run(role, job, on_progress) for role, job in planned.items()}


def _run(role: str, job: PlannedCalibration, on_progress: OnProgress) -> CalibrationReport:
    def renamed(event: Progress) -> None:
        on_progress(Progress(f"{event.stage} {role}", event.done, event.total, event.unit))

    texts = None if job.texts is None else read_texts(job.texts)
    return calibrate(job.checkpoint, job.out, job.options, texts, renamed)
