"""ModelConfig: what config.json of a TensorRT-LLM checkpoint says of a decoder. Reads JSON, opens no weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trtkit.errors import CheckpointError
from trtkit.reference.model.attention_rule import AttentionRule


class Family(NamedTuple):
    """What the architecture's name says and config.json does not."""

    always_has_qkv_bias: bool = False
    has_head_norms: bool = False


ARCHITECTURES = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(),
    "Qwen2ForCausalLM": Family(always_has_qkv_bias=True),
    "Qwen3ForCausalLM": Family(has_head_norms=True),
}
DTYPES = ("float32", "float16", "bfloat16")
ROPE_KINDS = ("default", "linear", "llama3")

# A key of the format that changes the function -> the values under which it does not. Any other value is refused.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "embedding_multiplier": (None, 1.0),
    "residual_multiplier": (None, 1.0),
    "attention_multiplier": (None, 1.0),
    "output_multiplier_scale": (None, 1.0),
    "residual_mlp": (None, False),
    "fc_after_embed": (None, False),
    "use_input_layernorm_in_first_layer": (None, True),
    "use_last_layernorm": (None, True),
    "layer_idx_offset": (None, 0),
    "use_logn_attn": (None, False),
    "qk_layernorm": (None, False),
    "sliding_window": (None,),
    "num_labels": (None, 1),
    "rotary_pct": (None, 1.0),
}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: base, and how the frequencies are stretched for long contexts."""

    base: float
    kind: str
    scaling: Mapping[str, Any]


@dataclass(frozen=True)
class ModelConfig:
    """The shapes and constants of a Llama-like decoder, named as in the rest of trtkit."""

    architecture: str
    dtype: str
    num_layers: int
    hidden_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    norm_eps: float
    rope: RopeConfig
    has_qkv_bias: bool
    has_dense_bias: bool
    has_mlp_bias: bool
    has_head_norms: bool
    tensor_parallel: int
    pipeline_parallel: int
    embedding_split_dim: int | None

    @property
    def attention_rules(self) -> tuple[AttentionRule, ...]:
        """One for every layer."""
        return (AttentionRule(scale=self.head_dim**-0.5),) * self.num_layers


def read_config(folder: Path) -> ModelConfig:
    """Parse `folder`/config.json.

    Raises CheckpointError: REF-MISSING no such file, REF-CONFIG not this format, REF-UNSUPPORTED a model, or a feature
    of one, that this engine does not compute.
    """
    path = folder / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        _refuse_unsupported(document, str(path))
        return _parse(document)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"{folder} is no TensorRT-LLM checkpoint: config.json is missing",
            "convert the Hugging Face checkpoint first (trtkit convert)",
            code="REF-MISSING",
            where=str(path),
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"not the config.json of a TensorRT-LLM checkpoint: {type(error).__name__} {error}",
            "convert the checkpoint again",
            code="REF-CONFIG",
            where=str(path),
        ) from error


def _parse(document: Mapping[str, Any]) -> ModelConfig:
    mapping = document["mapping"]
    architecture, hidden_size = document["architecture"], document["hidden_size"]
    num_q_heads = document["num_attention_heads"]
    family = ARCHITECTURES[architecture]
    attention_bias = bool(document["attn_bias"])
    is_embedding_split = bool(document.get("use_parallel_embedding", False))
    return ModelConfig(
        architecture=architecture,
        dtype=document["dtype"],
        num_layers=document["num_hidden_layers"],
        hidden_size=hidden_size,
        num_q_heads=num_q_heads,
        num_kv_heads=document["num_key_value_heads"],
        head_dim=document["head_size"],
        intermediate_size=document["intermediate_size"],
        vocab_size=document["vocab_size"],
        max_position_embeddings=document["max_position_embeddings"],
        norm_eps=document["norm_epsilon"],
        rope=_parse_rope(document),
        has_qkv_bias=attention_bias or family.always_has_qkv_bias,
        has_dense_bias=attention_bias and not family.always_has_qkv_bias,
        has_mlp_bias=bool(document.get("mlp_bias", False)),
        has_head_norms=family.has_head_norms,
        tensor_parallel=mapping["tp_size"],
        pipeline_parallel=mapping["pp_size"],
        embedding_split_dim=document.get("embedding_sharding_dim", 0) if is_embedding_split else None,
    )


def _parse_rope(document: Mapping[str, Any]) -> RopeConfig:
    scaling = document.get("rotary_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return RopeConfig(base=document["rotary_base"], kind=kind, scaling=scaling)


def _refuse_unsupported(document: Mapping[str, Any], where: str) -> None:
    """Raise one CheckpointError REF-UNSUPPORTED with everything that this engine would compute wrongly."""
    quantization = document.get("quantization") or {}
    rope_kind = _parse_rope(document).kind
    checks = {
        f"architecture {document['architecture']}": document["architecture"] in ARCHITECTURES,
        f"dtype {document['dtype']}": document["dtype"] in DTYPES,
        f"hidden_act {document['hidden_act']}": document["hidden_act"] == "silu",
        f"position_embedding_type {document['position_embedding_type']}": document["position_embedding_type"]
        == "rope_gpt_neox",
        f"rotary_scaling of type {rope_kind}": rope_kind in ROPE_KINDS,
        f"quantization {quantization.get('quant_algo')}": quantization.get("quant_algo") is None,
        f"KV cache quantization {quantization.get('kv_cache_quant_algo')}": not quantization.get("kv_cache_quant_algo"),
        "a mixture of experts": not (document.get("moe") or {}).get("num_experts"),
        "a rotation of part of each head": document.get("rotary_embedding_dim") in (None, document["head_size"]),
        "context parallelism": document["mapping"].get("cp_size", 1) == 1,
    }
    problems = [what for what, is_fine in checks.items() if not is_fine]
    problems += [f"{key} = {document[key]}" for key, neutral in _NEUTRAL.items() if document.get(key) not in neutral]
    if problems:
        raise CheckpointError(
            "the reference engine does not compute " + ", ".join(problems),
            f"use one of {', '.join(ARCHITECTURES)} without these features, or the engine backend on a GPU",
            code="REF-UNSUPPORTED",
            where=where,
        )
