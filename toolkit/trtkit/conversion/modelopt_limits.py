"""What nvidia-modelopt can quantise and export, and why not the rest, before a model is loaded. Opens headers only.

Found by running modelopt 0.47 on every family (tests/conversion/test_modelopt.py); docs/conversion-matrix.md shows it.
"""

import importlib.util
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.checkpoints.weights import open_weights
from trtkit.errors import CheckpointError, MissingToolError

ModeloptQuantization = Literal["fp8", "int4_awq", "w4a8_awq", "int8_smoothquant", "nvfp4"]
CheckpointFormat = Literal["tensorrt_llm", "hf"]

DECODERS = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen",
    "qwen2_moe": "qwen",
    "qwen3": "qwen",
    "gemma": "gemma",
    "gpt2": "gpt",
}
"""Families that its export for TensorRT-LLM writes -> its word for the decoder."""
EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe")
# Values that share a scale: an input dimension is made of whole groups, on every rank.
_GROUP = {"int4_awq": 128, "w4a8_awq": 128, "nvfp4": 16}
_AWQ_VOCABULARY = 64
_OWN = "fp8, fp8_rowwise, int8_weight_only or int4_weight_only, which trtkit writes itself"


@dataclass(frozen=True)
class ModeloptOptions:
    """fp8_kv_cache adds calibrated KV scales. dtype is of what stays unquantised."""

    quantization: ModeloptQuantization
    fp8_kv_cache: bool = False
    dtype: str = "bfloat16"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    format: CheckpointFormat = "tensorrt_llm"
    device: str = "cpu"


def refuse_missing() -> None:
    """Raise MissingToolError CONV-PACKAGE when modelopt, or what it needs, is not installed."""
    for package in ("modelopt", "torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingToolError(
                f"this quantization is done by nvidia-modelopt, and {package} is not installed",
                "pip install 'trtkit[quantize]'",
                code="CONV-PACKAGE",
            )


def refuse_impossible(spec: ModelSpec, options: ModeloptOptions, where: str) -> None:
    """Raise CheckpointError CONV-MODELOPT for a model or width that modelopt cannot export so."""
    reason = why_not_family(spec.family, options, transformers_major())
    if options.format == "tensorrt_llm":
        reason = reason or _why_not_cut(spec, options) or _why_not_padded(spec, options)
    reason = reason or _why_not_grouped(spec, options)
    if reason is not None:
        cause, fix = reason
        raise CheckpointError(cause, fix, code="CONV-MODELOPT", where=where)


def refuse_too_large(checkpoint: Path, available_bytes: int) -> None:
    """Raise CheckpointError CONV-MEMORY when the whole model, which modelopt holds, does not fit into this machine."""
    needed = sum(tensor.num_bytes for tensor in open_weights(checkpoint).values())
    if needed > available_bytes:
        raise CheckpointError(
            f"modelopt holds the whole model, {needed / 1e9:.1f} GB, and {available_bytes / 1e9:.1f} GB are free",
            f"use a machine with more memory, or choose {_OWN} with little memory",
            code="CONV-MEMORY",
            where=str(checkpoint),
        )


def transformers_major() -> int:
    """The release of transformers that models are made with."""
    return int(version("transformers").split(".")[0])


def why_not_family(family: str, options: ModeloptOptions, transformers: int) -> tuple[str, str] | None:
    """(cause, fix) when no model of the family can be exported so, else None. transformers: its major version."""
    quantization = options.quantization
    if options.format == "hf":
        return _why_not_hf(family, quantization, transformers)
    if family not in DECODERS:
        fix = f"for backend llmapi: --format hf; or {_OWN}" if quantization in _GROUP else f"choose {_OWN}"
        return f"modelopt's export for TensorRT-LLM has no {family}", fix
    if family not in EXPERTS:
        return None
    if quantization == "int8_smoothquant":
        return f"modelopt's export of SmoothQuant does not know the experts of {family}", f"choose {_OWN}"
    if transformers >= 5:
        return (
            f"modelopt's export wants the experts of {family} one by one, and transformers 5 keeps them as one tensor",
            f"pip install 'transformers<5', or choose {_OWN}",
        )
    return None


def _why_not_hf(family: str, quantization: str, transformers: int) -> tuple[str, str] | None:
    if family == "gpt2":
        return "TensorRT-LLM's PyTorch backend has no GPT-2", "use backend: engine or reference for this model"
    if family in EXPERTS and quantization.endswith("awq") and transformers >= 5:
        return (
            f"modelopt's AWQ wants the experts of {family} one by one, and transformers 5 keeps them as one tensor",
            "choose nvfp4 or fp8, or pip install 'transformers<5'",
        )
    return None


def _why_not_cut(spec: ModelSpec, options: ModeloptOptions) -> tuple[str, str] | None:
    """Whether it can spread the layers over the stages and the heads over the ranks."""
    stages, ranks = options.pipeline_parallel, options.tensor_parallel
    if spec.num_layers % stages:
        return (
            f"modelopt spreads {spec.num_layers} layers over {stages} stages only evenly",
            "choose a pipeline_parallel that divides the layers",
        )
    if options.quantization == "int8_smoothquant" and ranks > spec.num_kv_heads:
        return (
            f"modelopt's SmoothQuant does not repeat {spec.num_kv_heads} key-value heads for {ranks} ranks",
            f"choose tensor_parallel {spec.num_kv_heads} or smaller, or {_OWN}",
        )
    return None


def _why_not_padded(spec: ModelSpec, options: ModeloptOptions) -> tuple[str, str] | None:
    """AWQ's vocabulary is padded, which it does not know to do for a head that it leaves out."""
    if spec.family != "gemma" or not options.quantization.endswith("awq") or spec.vocab_size % _AWQ_VOCABULARY == 0:
        return None
    return (
        f"modelopt pads the vocabulary to a multiple of {_AWQ_VOCABULARY} for AWQ, but not {spec.family}'s tied head",
        f"choose {_OWN}",
    )


def _why_not_grouped(spec: ModelSpec, options: ModeloptOptions) -> tuple[str, str] | None:
    """Whether every rank's part is made of whole groups of values that share a scale."""
    ranks = options.tensor_parallel if options.format == "tensorrt_llm" else 1
    group = _GROUP.get(options.quantization, 1)
    inner = spec.moe.intermediate_size if spec.moe else spec.intermediate_size
    inputs = {
        "hidden size": spec.hidden_size,
        "width of attention": spec.num_q_heads * spec.head_dim,
        "intermediate size": inner,
    }
    for name, size in inputs.items():
        if size // ranks % group:
            return (
                f"{options.quantization} shares scales between {group} values, and the {name} per rank is "
                f"{size // ranks}",
                f"choose a smaller tensor_parallel, or {_OWN}" if ranks > 1 else f"choose {_OWN}",
            )
    return None
