"""What an engine's config.json must say after a build, and how it differs. Knows the builder's rewrites, runs nothing.

The rewrites are those of builder.py for the requests that build_args.py writes: max_seq_len grows by max_draft_len,
and the two kinds of context FMHA stay as asked, because EngineSpec asks only for what the builder grants.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtkit.engines.build_args import gemm_plugin
from trtkit.engines.spec import EngineSpec
from trtkit.errors import BuildError

# SpeculativeDecodingMode is an IntFlag; releases write its number or its name.
_NO_SPECULATION, _DRAFT_TOKENS_EXTERNAL = 1, 2
_MODE_NAMES = {"NONE": _NO_SPECULATION, "DRAFT_TOKENS_EXTERNAL": _DRAFT_TOKENS_EXTERNAL}
# What makes a model this model. The loader adds keys and fills defaults in nested ones, which are left alone.
_IDENTITY = (
    *("architecture", "dtype", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_size", "intermediate_size", "hidden_act", "norm_epsilon", "rotary_base"),
    *("position_embedding_type", "max_position_embeddings"),
)
_MAPPING = ("world_size", "tp_size", "pp_size", "moe_tp_size", "moe_ep_size")
_ABSENT = "(absent)"


@dataclass(frozen=True)
class Mismatch:
    """One field of config.json that is not what was asked for."""

    field: str
    asked: Any
    built: Any


def expected_fields(spec: EngineSpec, version: str, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted field of the engine's config.json -> the value it must have.

    `checkpoint` is the config.json of the TensorRT-LLM checkpoint: the model must be found again in the engine.
    """
    pretrained = {f"pretrained_config.{key}": checkpoint[key] for key in _IDENTITY if key in checkpoint}
    given = checkpoint.get("mapping", {})
    mapping = {f"pretrained_config.mapping.{key}": given[key] for key in _MAPPING if key in given}
    quantization = checkpoint.get("quantization") or {}
    algorithms = {
        f"pretrained_config.quantization.{key}": quantization.get(key) for key in ("quant_algo", "kv_cache_quant_algo")
    }
    return {"version": version} | pretrained | mapping | algorithms | _build_fields(spec)


def compare_fields(expected: Mapping[str, Any], document: Mapping[str, Any]) -> list[Mismatch]:
    """Every expected field that `document` has otherwise, or not at all."""
    found = {field: _look_up(document, field) for field in expected}
    return [
        Mismatch(field, asked, found[field])
        for field, asked in expected.items()
        if _normalised(field, found[field]) != _normalised(field, asked)
    ]


def refuse_mismatches(mismatches: list[Mismatch], where: str) -> None:
    """Raise BuildError ENGINE-DIFFERS that lists every mismatch; return when there is none."""
    if not mismatches:
        return
    lines = "\n".join(f"  {m.field}: asked {m.asked!r}, built {m.built!r}" for m in mismatches)
    raise BuildError(
        f"the engine is not what was asked for:\n{lines}",
        "its build log says which option was overridden; a version that differs means another trtllm-build was run",
        code="ENGINE-DIFFERS",
        where=where,
    )


def _build_fields(spec: EngineSpec) -> dict[str, Any]:
    limits = {
        "max_batch_size": spec.max_batch_size,
        "max_input_len": spec.max_input_len,
        "max_seq_len": spec.built_max_seq_len,
        "max_num_tokens": spec.max_num_tokens,
        "max_beam_width": 1,
        "max_draft_len": spec.max_draft_len,
        "speculative_decoding_mode": _DRAFT_TOKENS_EXTERNAL if spec.max_draft_len else _NO_SPECULATION,
        "kv_cache_type": "PAGED",
        "gather_context_logits": False,
        "gather_generation_logits": spec.generation_logits,
    }
    plugins: dict[str, Any] = {
        "context_fmha": True,
        "remove_input_padding": True,
        "tokens_per_block": spec.block_size,
        "use_paged_context_fmha": spec.paged_context_fmha,
        "use_fp8_context_fmha": spec.fp8_context_fmha,
        "streamingllm": spec.attention_sinks,
    }
    # "auto" is written as itself by some releases and as the model's dtype by others.
    if gemm_plugin(spec.quantization) != "auto":
        plugins["gemm_plugin"] = gemm_plugin(spec.quantization)
    return {f"build_config.{name}": value for name, value in limits.items()} | {
        f"build_config.plugin_config.{name}": value for name, value in plugins.items()
    }


def _look_up(document: Mapping[str, Any], dotted: str) -> Any:
    value: Any = document
    for key in dotted.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return _ABSENT
        value = value[key]
    return value


def _normalised(field: str, value: Any) -> Any:
    if field.endswith("speculative_decoding_mode"):
        return _MODE_NAMES.get(str(value).rpartition(".")[2].upper(), value)
    if field.endswith("kv_cache_type"):
        return str(value).rpartition(".")[2].upper()
    if field == "version":
        return _without_build_number(str(value))
    return value


def _without_build_number(version: str) -> str:
    """ "1.0.3.2510" of a container is 1.0.3, "1.2.1+cu131" is 1.2.1; a post release stays one."""
    numbers = version.partition("+")[0].split(".")
    return ".".join(numbers[:3]) if len(numbers) == 4 and numbers[3].isdigit() else ".".join(numbers)
