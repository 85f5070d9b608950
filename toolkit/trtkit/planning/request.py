"""From a YAML and a few choices to a Plan: reads config.json of the checkpoints, nothing larger."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtkit.checkpoints.draft_vocabulary import read_draft_vocabulary
from trtkit.checkpoints.model_spec import ModelSpec, read_model_spec
from trtkit.checkpoints.quantized import read_quantized
from trtkit.checkpoints.source import find_checkpoint
from trtkit.config.schema import BuildConfig
from trtkit.errors import CheckpointError, ConfigError
from trtkit.planning.gpus import GpuModel, find_gpu, nearest_names, parse_gpu_spec
from trtkit.planning.plan import Plan, PlanInput, make_plan


@dataclass(frozen=True)
class PlanRequest:
    """cache: where hub checkpoints lie. gpu, gpu_spec: instead of the YAML's. host_bytes: memory of a CPU server.

    where: names the YAML in messages.
    """

    cache: Path
    gpu: str | None = None
    gpu_spec: str | None = None
    host_bytes: int | None = None
    context_tokens: int = 0
    acceptance_rate: float | None = None
    where: str = "YAML"


def plan_config(config: BuildConfig, request: PlanRequest) -> Plan:
    """Predict the deployment of a build config.

    Raises CheckpointError PLAN-CHECKPOINT when a checkpoint is not on this disk, ConfigError for an unknown GPU.
    """
    gpu = choose_gpu(config, request)
    folders = _folders(config, request)
    specs = {role: read_model_spec(folder) for role, folder in folders.items()}
    given = PlanInput(
        gpu=gpu,
        memory_bytes=None if gpu else request.host_bytes,
        context_tokens=request.context_tokens,
        acceptance_rate=request.acceptance_rate,
        head_rows=partial_heads(folders, specs),
        unconverted=frozenset(role for role, folder in folders.items() if _is_read_as_stored(role, config, folder)),
    )
    return make_plan(config, specs, given)


def partial_heads(folders: Mapping[str, Path], specs: Mapping[str, ModelSpec]) -> dict[str, int]:
    """Role -> how many logits it computes, of the models that compute a part of them.

    Raises CheckpointError CKPT-VOCABULARY for a damaged draft_vocabulary.json.
    """
    read = {role: read_draft_vocabulary(folders[role], spec.vocab_size) for role, spec in specs.items()}
    return {role: len(token_ids) for role, token_ids in read.items() if token_ids is not None}


def choose_gpu(config: BuildConfig, request: PlanRequest) -> GpuModel | None:
    """--gpu-spec, else --gpu, else the YAML's; a reference deployment without any of them has none."""
    if request.gpu_spec is not None:
        return parse_gpu_spec(request.gpu_spec)
    name = request.gpu or (config.gpu.name if config.gpu else None)
    if name is None:
        return None
    gpu = find_gpu(name)
    if gpu is None:
        near = " or ".join(nearest_names(name))
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(
            f"{name} is no GPU of the catalogue",
            f"{hint}`trtkit plan --list-gpus` lists them; describe another one with --gpu-spec",
            code="GPU-UNKNOWN",
            where="--gpu" if request.gpu else f"{request.where}:gpu.name",
        )
    return gpu


def _is_read_as_stored(role: str, config: BuildConfig, folder: Path) -> bool:
    """Whether the LLM API reads a checkpoint as it is: no format is asked for, or it is stored in one already."""
    asked = config.models[role].quantization
    return config.backend == "llmapi" and (asked == "none" or read_quantized(folder) is not None)


def _folders(config: BuildConfig, request: PlanRequest) -> dict[str, Path]:
    folders = {}
    for role, model in config.models.items():
        folder = find_checkpoint(model.checkpoint, request.cache, model.revision)
        if folder is None:
            raise CheckpointError(
                f"{model.checkpoint} is not on this disk",
                "a plan needs only its config.json: put it into a folder and name that, or run trtkit build once",
                code="PLAN-CHECKPOINT",
                where=f"{request.where}:{role}.checkpoint",
            )
        folders[role] = folder
    return folders
