"""Deployment: everything the rules about a YAML may look at, gathered once. Knows how to gather, judges nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trtkit.checking.builder import Outcome, build_outcome
from trtkit.checking.subjects.hf_checkpoint import HfCheckpoint, read_hf_checkpoint
from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.checkpoints.pair import TokenizerDifference, compare_tokenizers
from trtkit.checkpoints.tokenizer import TokenizerSpec
from trtkit.config.schema import BuildConfig, DraftTarget, Model
from trtkit.doctor import Machine, inspect_machine
from trtkit.engines.quant_algo import quantization_of
from trtkit.engines.release import Release, find_release
from trtkit.engines.requested_spec import engine_spec
from trtkit.engines.spec import EngineSpec
from trtkit.findings import Finding
from trtkit.planning.gpus import GpuModel, find_gpu

ResolvedBackend = Literal["engine", "llmapi", "reference"]


@dataclass(frozen=True)
class Deployment:
    """A build config and what is known of the things it names.

    release and gpu are None when the config names unknown ones. specs, tokenizers and folders hold the roles whose
    checkpoint is on this disk and could be read. pair is None unless both tokenizers are there. stored: how the weights
    of a role are quantised already, in the YAML's words ("none", "fp8", ...). head_rows: how many logits a draft
    computes that computes a part of them. absent_files: key of the YAML -> the file it names, which is not there.
    """

    config: BuildConfig
    backend: ResolvedBackend
    release: Release | None
    gpu: GpuModel | None
    folders: Mapping[str, Path]
    specs: Mapping[str, ModelSpec]
    tokenizers: Mapping[str, TokenizerSpec]
    pair: TokenizerDifference | None
    stored: Mapping[str, str] = field(default_factory=dict)
    head_rows: Mapping[str, int] = field(default_factory=dict)
    absent_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def speculation(self) -> DraftTarget | None:
        """The speculation section when there is a draft."""
        return self.config.speculation if isinstance(self.config.speculation, DraftTarget) else None

    @property
    def engine_sinks(self) -> bool:
        """Whether the runtime itself is asked to keep attention sinks."""
        sinks = self.config.attention_sinks
        return sinks is not None and sinks.strategy == "engine"

    def known(self) -> Iterator[tuple[str, Model, ModelSpec]]:
        """(role, what the YAML says, what config.json says) of every model that could be read."""
        for role, spec in self.specs.items():
            yield role, self.config.models[role], spec

    def engine_spec(self, role: str) -> EngineSpec:
        """The engine that this role is built as."""
        return engine_spec(role, self.config, self.gpu.sm if self.gpu else None)

    def outcome(self, role: str) -> Outcome:
        """What trtllm-build and the runtime make of this role's engine."""
        return build_outcome(self.engine_spec(role))


def resolve_backend(config: BuildConfig, machine: Machine | None = None) -> ResolvedBackend:
    """`auto` takes engine where a GPU and TensorRT-LLM with the engine flow are present, and reference elsewhere.

    machine: None looks at this one, where that decides. Checks and builds both ask here.
    """
    if config.backend != "auto":
        return config.backend
    return "engine" if (machine or inspect_machine()).allows["engine"].possible else "reference"


def gather(config: BuildConfig, folders: Mapping[str, Path]) -> tuple[Deployment, list[Finding]]:
    """The deployment, and a finding for every file that could not be read."""
    problems: list[Finding] = []
    backend = resolve_backend(config)
    folders = {role: folder for role, folder in folders.items() if not folder.is_file()}
    read: dict[Path, HfCheckpoint] = {}
    for folder in dict.fromkeys(folders.values()):
        read[folder], amiss = read_hf_checkpoint(folder, converts=backend != "llmapi")
        problems += amiss
    specs = {role: spec for role, folder in folders.items() if (spec := read[folder].spec) is not None}
    tokenizers = {role: found for role, folder in folders.items() if (found := read[folder].tokenizer) is not None}
    both = tokenizers.keys() >= {"draft", "target"}
    deployment = Deployment(
        config=config,
        backend=backend,
        release=find_release(config.tensorrt_llm),
        gpu=find_gpu(config.gpu.name) if config.gpu else None,
        folders=folders,
        specs=specs,
        tokenizers=tokenizers,
        pair=compare_tokenizers(tokenizers["draft"], tokenizers["target"]) if both else None,
        stored={role: _stored(read[folder]) for role, folder in folders.items() if read[folder].spec is not None},
        head_rows={role: rows for role, folder in folders.items() if (rows := read[folder].head_rows) is not None},
        absent_files=absent_files(config),
    )
    return deployment, problems


def absent_files(config: BuildConfig) -> dict[str, str]:
    """Key -> file, of the texts that the config names and that are not there; a baseline may be written later."""
    named = {"calibration.prompts": config.calibration.prompts, "verification.prompts": config.verification.prompts}
    return {key: file for key, file in named.items() if file is not None and not Path(file).exists()}


def _stored(checkpoint: HfCheckpoint) -> str:
    return quantization_of(checkpoint.quantized.algorithm) if checkpoint.quantized else "none"
