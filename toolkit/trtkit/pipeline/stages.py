"""The stages of a build as data: what each reads, writes and depends on. Pure; runs nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trtkit import __version__
from trtkit.artifacts import key_of, sha256_of
from trtkit.config.schema import BuildConfig, Model
from trtkit.conversion.options import ConversionOptions
from trtkit.engines.release import Release, find_release
from trtkit.engines.requested_spec import engine_spec
from trtkit.errors import InputError
from trtkit.pipeline.inputs import CheckpointInput
from trtkit.planning.gpus import find_gpu

SCALES_FOLDER = "scales"
StageName = Literal["check", "calibrate", "convert", "engines", "tokenizer", "repository"]
STAGE_NAMES: tuple[StageName, ...] = ("check", "calibrate", "convert", "engines", "tokenizer", "repository")


@dataclass(frozen=True)
class Stage:
    """One directory of the build: `name` in messages, `group` for --only, `key` decides whether it is up to date."""

    name: str
    group: StageName
    out: Path
    key: str


@dataclass(frozen=True)
class BuildRequest:
    """Everything that decides what a build writes. config.backend is resolved: it is not "auto".

    sm: of the GPU that engines are built on and for; None when neither the YAML nor this machine names one.
    calibrations: role -> the file that `trtkit calibrate` wrote, for the roles that have one. measured: the roles whose
    scales the build measures itself -> digest of the texts, None for those that trtkit ships.
    """

    config: BuildConfig
    out: Path
    inputs: Mapping[str, CheckpointInput]
    sm: int | None = None
    calibrations: Mapping[str, Path] = field(default_factory=dict)
    measured: Mapping[str, str | None] = field(default_factory=dict)

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


def conversion_options(model: Model, config: BuildConfig, calibration: Path | None = None) -> ConversionOptions:
    """How one checkpoint of the config is converted."""
    return ConversionOptions(
        dtype=model.dtype,
        tensor_parallel=model.tensor_parallel,
        pipeline_parallel=model.pipeline_parallel,
        expert_parallel=model.expert_parallel,
        quantization=model.quantization,
        kv_cache_dtype=config.kv_cache.dtype,
        calibration=calibration,
    )


def gpu_sm(config: BuildConfig, machine_sm: int | None = None) -> int | None:
    """The SM of the GPU that the YAML names, else this machine's."""
    named = find_gpu(config.gpu.name) if config.gpu else None
    return named.sm if named else machine_sm


def plan_stages(request: BuildRequest) -> list[Stage]:
    """The stages in order. A stage's key covers trtkit's version, its own settings and the keys it builds on.

    The LLM API reads Hugging Face checkpoints, so that backend has no conversion and no engines.
    """
    config, out = request.config, request.out
    stages: list[Stage] = []

    def add(name: str, group: StageName, folder: Path, **decides: Any) -> str:
        key = key_of({"trtkit": __version__, "stage": name, **decides})
        stages.append(Stage(name, group, folder, key))
        return key

    engines = [] if config.backend == "llmapi" else _add_engines(request, add)
    tokenizer = add("tokenizer", "tokenizer", out / "tokenizer", source=request.inputs["target"].digest)
    served = config.model_dump(mode="json", exclude={"verification", "calibration"})
    add("repository", "repository", out / "model_repository", engines=engines, tokenizer=tokenizer, config=served)
    return stages


def _add_engines(request: BuildRequest, add: Callable[..., str]) -> list[str]:
    """Add calibration, conversion and engine of every model; returns the engines' keys."""
    config, out = request.config, request.out
    scales = {role: sha256_of(file) for role, file in request.calibrations.items()}
    for role, texts in request.measured.items():
        decides = _decides_scales(role, request) | {"texts": texts}
        scales[role] = add(f"calibrate {role}", "calibrate", out / SCALES_FOLDER / role, **decides)
    converted = {}
    for role, model in config.models.items():
        decides = {"source": request.inputs[role].digest, "options": repr(conversion_options(model, config))}
        if role in scales:
            decides["calibration"] = scales[role]
        converted[role] = add(f"convert {role}", "convert", out / "checkpoints" / role, **decides)
    return [
        add(
            f"engine {role}",
            "engines",
            out / "engines" / role,
            checkpoint=key,
            spec=repr(engine_spec(role, config, request.sm)),
            version=config.tensorrt_llm,
            backend=config.backend,
        )
        for role, key in converted.items()
    ]


def _decides_scales(role: str, request: BuildRequest) -> dict[str, Any]:
    config = request.config
    return {
        "source": request.inputs[role].digest,
        "samples": config.calibration.model_dump(mode="json", exclude={"prompts"}),
        "dtype": config.models[role].dtype,
        "kv_cache": config.kv_cache.dtype,
    }
