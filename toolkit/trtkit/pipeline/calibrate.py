"""The stage `calibrate` of a build: which models need it, what decides it, and the measuring. Knows no arithmetic."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from trtkit.calibration.modelopt_samples import calibration_ids
from trtkit.config.schema import BuildConfig
from trtkit.conversion.modelopt_limits import refuse_too_large
from trtkit.conversion.options import MODELOPT_QUANTIZATIONS as BY_MODELOPT
from trtkit.doctor import Machine, inspect_machine
from trtkit.errors import InputError, MissingToolError
from trtkit.pipeline.inputs import CheckpointInput
from trtkit.pipeline.request import BuildRequest, texts_digest
from trtkit.pipeline.stored import stored_quantization
from trtkit.progress import OnProgress

FILES = ("calibration.json", "outliers.png", "report.json")
_RECORDS = "measured"  # one per layer; needed while the pass may still be interrupted


def find_calibrations(config: BuildConfig, out: Path) -> dict[str, Path]:
    """What `trtkit calibrate` left in a build directory: role -> file. It is used instead of measuring again."""
    files = {role: out / "calibration" / role / "calibration.json" for role in config.models}
    return {role: file for role, file in files.items() if file.is_file()}


def measured_by_build(
    config: BuildConfig, inputs: Mapping[str, CheckpointInput], given: Mapping[str, Path]
) -> dict[str, str | None]:
    """The roles whose scales the build measures, each with the digest of the user's texts.

    Those are models whose conversion is impossible without: FP8 weights, whose inputs have static scales, and an INT8
    KV cache. Not those whose checkpoint is quantised already, and those that `trtkit calibrate` was run for (`given`).
    """
    digest = texts_digest(config)
    roles = [role for role in config.models if role not in given and _needs_scales(role, config)]
    return {role: digest for role in roles if stored_quantization(inputs[role].folder) == "none"}


def calibration_runner(
    role: str, request: BuildRequest, cache: Path, machine: Machine, on_progress: OnProgress
) -> Callable[[Path], None]:
    """The function that fills the stage's directory."""

    def run(scratch: Path) -> None:
        try:
            from trtkit.calibration.jobs import Choices, plan_calibrations, run_calibrations
        except ImportError as error:
            raise MissingToolError(
                f"measuring scales needs {error.name}", 'pip install "trtkit[reference]"', code="CALIB-PACKAGE"
            ) from None
        # Where TensorRT-LLM is installed with a GPU, PyTorch is NVIDIA's and has CUDA.
        device = "cuda" if machine.allows["engine"].possible else "cpu"
        planned = plan_calibrations(request.config, cache, Choices(only=role, device=device))
        run_calibrations({role: replace(planned[role], out=scratch)}, on_progress)
        shutil.rmtree(scratch / _RECORDS)

    return run


def quantiser_samples(role: str, request: BuildRequest) -> tuple[tuple[int, ...], ...]:
    """The token ids that modelopt calibrates a model on while it is converted; none for what it does not quantise.

    Raises CheckpointError CONV-MEMORY when the model does not fit into this machine, as modelopt needs it.
    """
    if request.config.models[role].quantization not in BY_MODELOPT:
        return ()
    refuse_too_large(request.inputs[role].folder, inspect_machine().memory.available_bytes)
    return calibration_ids(request.inputs[role].folder, request.config.calibration)


def explained(error: InputError, role: str, request: BuildRequest) -> InputError:
    """The conversion's error with a fix in the words of a build, where a calibration is what it lacks."""
    if error.code != "CONV-CALIBRATION" or role in request.calibrations:
        return error
    return InputError(
        f"the {role} is to be quantised to {request.config.models[role].quantization}, and nothing measured its inputs",
        f"run `trtkit calibrate` on the same YAML with --out {request.out / 'calibration'}, then build again",
        code="CONV-CALIBRATION",
        where=f"{role}.quantization",
    )


def _needs_scales(role: str, config: BuildConfig) -> bool:
    quantization = config.models[role].quantization
    return quantization == "fp8" or (config.kv_cache.dtype == "int8" and quantization not in BY_MODELOPT)
