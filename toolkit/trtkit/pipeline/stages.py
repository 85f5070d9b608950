"""The stages of a build as data: what each reads, writes and depends on. Pure; runs nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trtkit import __version__
from trtkit.artifacts import key_of
from trtkit.config.schema import BuildConfig, Model
from trtkit.conversion.options import ConversionOptions
from trtkit.engines.spec import EngineSpec
from trtkit.pipeline.inputs import CheckpointInput

StageName = Literal["check", "convert", "engines", "tokenizer", "repository"]
STAGE_NAMES: tuple[StageName, ...] = ("check", "convert", "engines", "tokenizer", "repository")


@dataclass(frozen=True)
class Stage:
    """One directory of the build: `name` in messages, `group` for --only, `key` decides whether it is up to date."""

    name: str
    group: StageName
    out: Path
    key: str


@dataclass(frozen=True)
class BuildRequest:
    """Everything that decides what a build writes. config.backend is resolved: it is not "auto"."""

    config: BuildConfig
    out: Path
    inputs: Mapping[str, CheckpointInput]


def conversion_options(model: Model, config: BuildConfig) -> ConversionOptions:
    """How one checkpoint of the config is converted."""
    return ConversionOptions(
        dtype=model.dtype,
        tensor_parallel=model.tensor_parallel,
        pipeline_parallel=model.pipeline_parallel,
        expert_parallel=model.expert_parallel,
        quantization=model.quantization,
        kv_cache_dtype=config.kv_cache.dtype,
    )


def engine_spec(role: str, config: BuildConfig) -> EngineSpec:
    """The limits of one engine. Both get the same lengths; only the target verifies drafts (facts 5.1)."""
    return EngineSpec(
        max_batch_size=config.limits.max_batch_size,
        max_input_len=config.limits.max_input_len,
        max_seq_len=config.limits.max_seq_len,
        max_draft_len=config.max_draft_len if role == "target" else 0,
        block_size=config.kv_cache.block_size,
        kv_dtype=config.kv_cache.dtype,
    )


def plan_stages(request: BuildRequest) -> list[Stage]:
    """The stages in order. A stage's key covers trtkit's version, its own settings and the keys it builds on."""
    config, out = request.config, request.out
    stages: list[Stage] = []

    def add(name: str, group: StageName, folder: Path, **decides: Any) -> str:
        key = key_of({"trtkit": __version__, "stage": name, **decides})
        stages.append(Stage(name, group, folder, key))
        return key

    engine_keys = []
    for role, model in config.models.items():
        options = conversion_options(model, config)
        source = request.inputs[role].digest
        converted = add(f"convert {role}", "convert", out / "checkpoints" / role, source=source, options=repr(options))
        engine_keys.append((role, converted))
    built = [
        add(
            f"engine {role}",
            "engines",
            out / "engines" / role,
            checkpoint=converted,
            spec=repr(engine_spec(role, config)),
            version=config.tensorrt_llm,
        )
        for role, converted in engine_keys
    ]
    tokenizer = add("tokenizer", "tokenizer", out / "tokenizer", source=request.inputs["target"].digest)
    served = config.model_dump(mode="json", exclude={"verification", "calibration"})
    add("repository", "repository", out / "model_repository", engines=built, tokenizer=tokenizer, config=served)
    return stages
