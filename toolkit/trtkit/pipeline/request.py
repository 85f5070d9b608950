"""BuildRequest: everything that decides what a build writes, resolved. Knows no stages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtkit.artifacts import sha256_of
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.config.schema import BuildConfig, DraftTarget
from trtkit.conversion.options import HF_QUANTIZATIONS
from trtkit.engines.release import Release, find_release
from trtkit.errors import InputError
from trtkit.pipeline.inputs import CheckpointInput
from trtkit.pipeline.stored import stored_quantization
from trtkit.planning.gpus import find_gpu

SCALES_FOLDER = "scales"


@dataclass(frozen=True)
class BuildRequest:
    """Everything that decides what a build writes. config.backend is resolved: it is not "auto".

    sm: of the GPU that engines are built on and for; None when neither the YAML nor this machine names one.
    calibrations: role -> the file that `trtkit calibrate` wrote, for the roles that have one. measured: the roles whose
    scales the build measures itself -> digest of the texts, None for those that trtkit ships. image: the one that
    engines were built in, by its digest; None where that is not known.
    """

    config: BuildConfig
    out: Path
    inputs: Mapping[str, CheckpointInput]
    sm: int | None = None
    calibrations: Mapping[str, Path] = field(default_factory=dict)
    measured: Mapping[str, str | None] = field(default_factory=dict)
    image: str | None = None

    @property
    def converted(self) -> tuple[str, ...]:
        """The roles whose checkpoint is converted; the LLM API reads some of them as they are."""
        if self.config.backend != "llmapi":
            return tuple(self.config.models)
        return tuple(
            role
            for role in self.config.models
            if converts_for_llmapi(role, self.config, self.inputs[role].folder, self.calibrations)
        )

    def pad_vocab_to(self, role: str) -> int | None:
        """The vocabulary that a draft's is padded to, when the YAML asks for it and the target's is larger."""
        speculation = self.config.speculation
        if role != "draft" or not isinstance(speculation, DraftTarget) or not speculation.pad_draft_vocab:
            return None
        own, target = (read_model_spec(self.inputs[name].folder).vocab_size for name in ("draft", "target"))
        return target if target > own else None

    def calibration(self, role: str) -> Path | None:
        """The file that a model's scales come from; the build's own is there after its stage `calibrate`."""
        own = self.out / SCALES_FOLDER / role / "calibration.json"
        return self.calibrations.get(role) or (own if role in self.measured and own.is_file() else None)

    @property
    def release(self) -> Release:
        """The release that the artifacts are for. Raises InputError for one that trtkit does not know."""
        release = find_release(self.config.tensorrt_llm)
        if release is None:
            raise InputError(
                f"TensorRT-LLM {self.config.tensorrt_llm} is not a release trtkit knows",
                "trtkit check names the nearest one",
                code="VERSION-UNKNOWN",
                where="tensorrt_llm",
            )
        return release


def converts_for_llmapi(role: str, config: BuildConfig, folder: Path, calibrations: Mapping[str, Path]) -> bool:
    """Whether a build for the LLM API makes something of a checkpoint. An unquantised one is quantised as the YAML
    asks, or given the scales of an FP8 cache that `trtkit calibrate` measured; what is stored as asked for is read so.
    """
    asked = config.models[role].quantization
    is_scaled = config.kv_cache.dtype == "fp8" and role in calibrations
    is_changed = asked in HF_QUANTIZATIONS or (asked == "none" and is_scaled)
    return is_changed and stored_quantization(folder) == "none"


def gpu_sm(config: BuildConfig, machine_sm: int | None = None) -> int | None:
    """The SM of the GPU that the YAML names, else this machine's."""
    named = find_gpu(config.gpu.name) if config.gpu else None
    return named.sm if named else machine_sm


def texts_digest(config: BuildConfig) -> str | None:
    """What identifies the user's calibration texts; None for those that trtkit ships."""
    file = config.calibration.prompts
    return sha256_of(Path(file)) if file and Path(file).is_file() else file
