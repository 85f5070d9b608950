"""The stages of a build as data: what each writes and what decides it. Reads small files, runs nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trtkit import __version__
from trtkit.artifacts import is_complete, key_of, sha256_of
from trtkit.config.schema import BuildConfig, Model
from trtkit.conversion.options import DEFAULT_ARCH, MODELOPT_QUANTIZATIONS, ConversionOptions
from trtkit.engines.requested_spec import engine_spec
from trtkit.pipeline.rendering import repository_texts
from trtkit.pipeline.request import SCALES_FOLDER, BuildRequest, texts_digest

StageName = Literal["check", "calibrate", "convert", "engines", "tokenizer", "repository"]
STAGE_NAMES: tuple[StageName, ...] = ("check", "calibrate", "convert", "engines", "tokenizer", "repository")
# What calibrations and conversions notice beside what the checks do; a build may ignore that too.
NOTICED_CODES = frozenset(
    {
        *("CALIB-EXPERTS", "CALIB-FEW", "CALIB-KEEP", "CKPT-NAN"),
        *("CONV-KV-CONSTANT", "CONV-OVERFLOW", "CONV-SCALE-DROPPED", "CONV-WINDOW"),
    }
)


@dataclass(frozen=True)
class Stage:
    """One directory of the build: `name` in messages, `group` for --only, `key` decides whether it is up to date."""

    name: str
    group: StageName
    out: Path
    key: str

    @property
    def is_up_to_date(self) -> bool:
        """Whether its directory holds what it would write; what others put beside that changes nothing."""
        return is_complete(self.out, self.key, beside_others=True)


def conversion_options(model: Model, config: BuildConfig, sm: int | None = None) -> ConversionOptions:
    """How one checkpoint of the config is converted, but for what it is calibrated on. sm: of the GPU it is for.

    The LLM API cuts a Hugging Face checkpoint over the ranks when it loads it.
    """
    if config.backend == "llmapi":
        return ConversionOptions(
            dtype=model.dtype,
            quantization=model.quantization,
            kv_cache_dtype=config.kv_cache.dtype,
            output_format="hf",
        )
    packed = sm is not None and model.quantization.endswith("weight_only")
    return ConversionOptions(
        dtype=model.dtype,
        tensor_parallel=model.tensor_parallel,
        pipeline_parallel=model.pipeline_parallel,
        expert_parallel=model.expert_parallel,
        quantization=model.quantization,
        kv_cache_dtype=config.kv_cache.dtype,
        weight_only_arch=sm if packed and sm is not None else DEFAULT_ARCH,
    )


def requested_conversion(role: str, request: BuildRequest) -> ConversionOptions:
    """How one checkpoint of a build is converted, but for what it is calibrated on."""
    options = conversion_options(request.config.models[role], request.config, request.sm)
    return options if options.output_format == "hf" else replace(options, pad_vocab_to=request.pad_vocab_to(role))


def plan_stages(request: BuildRequest) -> list[Stage]:
    """The stages in order. A stage's key covers trtkit's version, its own settings and the keys it builds on.

    The LLM API reads Hugging Face checkpoints, so that backend has no engines, and a conversion only for models whose
    weights are to be quantised first.
    """
    config, out = request.config, request.out
    stages: list[Stage] = []

    def add(name: str, group: StageName, folder: Path, **decides: Any) -> str:
        key = key_of({"trtkit": __version__, "stage": name, **decides})
        stages.append(Stage(name, group, folder, key))
        return key

    converted = _add_conversions(request, add)
    engines = list(converted.values()) if config.backend == "llmapi" else _add_engines(request, converted, add)
    tokenizer = add("tokenizer", "tokenizer", out / "tokenizer", source=request.inputs["target"].digest)
    # The texts themselves decide: a repository rendered by other code of the same version is not up to date.
    texts = key_of(repository_texts(request))
    add("repository", "repository", out / "model_repository", engines=engines, tokenizer=tokenizer, texts=texts)
    return stages


def _add_conversions(request: BuildRequest, add: Callable[..., str]) -> dict[str, str]:
    """Add calibration and conversion of every model that is converted; returns the conversions' keys by role."""
    config, out = request.config, request.out
    scales = {role: sha256_of(file) for role, file in request.calibrations.items()}
    for role, texts in request.measured.items():
        decides = _decides_scales(role, request) | {"texts": texts}
        scales[role] = add(f"calibrate {role}", "calibrate", out / SCALES_FOLDER / role, **decides)
    converted = {}
    for role in request.converted:
        options = requested_conversion(role, request)
        source = request.inputs[role]
        by_tokens = options.output_format == "hf" or options.quantization in MODELOPT_QUANTIZATIONS
        decides = {"source": source.digest if by_tokens else source.weights_digest, "options": repr(options)}
        if options.quantization in MODELOPT_QUANTIZATIONS:
            decides["samples"] = config.calibration.model_dump(mode="json", exclude={"prompts"})
            decides["texts"] = texts_digest(config)
        elif role in scales:
            decides["calibration"] = scales[role]
        converted[role] = add(f"convert {role}", "convert", out / "checkpoints" / role, **decides)
    return converted


def _add_engines(request: BuildRequest, converted: Mapping[str, str], add: Callable[..., str]) -> list[str]:
    """Add the engine of every model; returns the engines' keys."""
    config, out = request.config, request.out
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
