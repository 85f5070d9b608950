"""What each stage of a build runs, as a function that fills its scratch directory. Runs nothing itself."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from trtkit.artifacts import read_record
from trtkit.conversion.convert import convert_checkpoint
from trtkit.engines.build import BuildTools, build_engine
from trtkit.engines.reference import write_reference_engine
from trtkit.engines.requested_spec import engine_spec
from trtkit.errors import BuildError, InputError
from trtkit.pipeline.calibrate import explained, quantiser_samples
from trtkit.pipeline.engine_backend import engine_job
from trtkit.pipeline.rendering import built_engine, repository_texts
from trtkit.pipeline.request import BuildRequest
from trtkit.pipeline.stages import requested_conversion
from trtkit.pipeline.tokenizer import copy_tokenizer
from trtkit.progress import OnProgress, Progress
from trtkit.repository.render import write_repository

Work = Callable[[Path], None]


def work_of_stages(request: BuildRequest, on_progress: OnProgress) -> dict[str, Work]:
    """Stage name -> its work, but for calibrations and the engines of TensorRT-LLM."""
    work: dict[str, Work] = {
        "tokenizer": lambda scratch: copy_tokenizer(request.inputs["target"].folder, scratch),
        "repository": _repository(request),
    }
    for role in request.config.models:
        work[f"convert {role}"] = _conversion(role, request, on_progress)
        work[f"engine {role}"] = _reference_engine(role, request)
    return work


def work_of_engines(
    request: BuildRequest, keys: Mapping[str, str], tools: BuildTools, on_progress: OnProgress
) -> dict[str, Work]:
    """trtllm-build for every engine. keys: stage name -> key."""

    def work(role: str) -> Work:
        def run(scratch: Path) -> None:
            _finished(request.out / "checkpoints" / role, "converted")
            build_engine(engine_job(role, request, keys[f"convert {role}"]), tools, scratch, on_progress)

        return run

    return {f"engine {role}": work(role) for role in request.config.models}


def _conversion(role: str, request: BuildRequest, on_progress: OnProgress) -> Work:
    def renamed(event: Progress) -> None:
        on_progress(Progress(f"convert {role}", event.done, event.total, event.unit))

    def run(scratch: Path) -> None:
        options = replace(
            requested_conversion(role, request),
            calibration=request.calibration(role),
            calibration_ids=quantiser_samples(role, request),
        )
        try:
            convert_checkpoint(request.inputs[role].folder, scratch, options, renamed)
        except InputError as error:
            raise explained(error, role, request) from None

    return run


def _reference_engine(role: str, request: BuildRequest) -> Work:
    def run(scratch: Path) -> None:
        write_reference_engine(
            engine_spec(role, request.config, request.sm),
            _finished(request.out / "checkpoints" / role, "converted"),
            scratch,
            request.out / "engines" / role,
            request.config.tensorrt_llm,
        )

    return run


def _repository(request: BuildRequest) -> Work:
    def run(scratch: Path) -> None:
        if request.config.backend != "llmapi":
            for role in request.config.models:
                _finished(request.out / "engines" / role, "built")
        write_repository(repository_texts(request, built_engine), scratch)

    return run


def _finished(folder: Path, how: str) -> Path:
    """The directory of an earlier stage; with --only it may be missing."""
    if read_record(folder) is None:
        raise BuildError(f"{folder} is not {how} yet", "run the build without --only", code="STAGE-ORDER")
    return folder
