"""ModelConfig: what the JSON files of a TensorRT-LLM checkpoint say of a decoder. Opens no weights.

config.json is the format's own. conversion.json lies beside it when trtkit made the checkpoint, and says what the
format has no place for: attention windows, an INT4 cache, the GPU that integer weights are packed for.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.errors import CheckpointError
from trtkit.reference.model.attention_rule import AttentionRule
from trtkit.reference.model.config_values import refuse_impossible
from trtkit.reference.model.families import ACTIVATIONS, ARCHITECTURES, Activation, Family
from trtkit.reference.model.unsupported import refuse_unsupported


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of some layers.

    scaling holds the constants of the kind, by the keys of config.json. The first `dim` elements of every head turn.
    max_positions is the model's max_position_embeddings.
    """

    base: float
    kind: str
    scaling: Mapping[str, Any]
    dim: int
    max_positions: int


@dataclass(frozen=True)
class LayerConfig:
    """What distinguishes one layer.

    rope is the number of the layer's RopeConfig, None without rotation. is_sparse: experts instead of one MLP.
    """

    attention: AttentionRule
    rope: int | None
    is_sparse: bool


@dataclass(frozen=True)
class MoeConfig:
    """The experts: each token visits top_k of num_experts, weighed by their softmax probabilities.

    normalizes: the weights of the visited ones are scaled to add up to one. shared_size is the intermediate size of an
    MLP that every token visits too, 0 without one.
    """

    num_experts: int
    top_k: int
    normalizes: bool
    intermediate_size: int
    shared_size: int


@dataclass(frozen=True)
class QuantConfig:
    """How quantised linear layers and the cache are stored, and how inputs are rounded.

    kv_cache_algorithm: FP8, INT8, INT4 (only trtkit's) or None. clamp bounds inputs that are scaled token by token.
    weight_only_arch: the SM version of packed integers, or None.
    """

    algorithm: str | None
    kv_cache_algorithm: str | None
    group_size: int
    clamp: tuple[float, float] | None
    weight_only_arch: int | None


@dataclass(frozen=True)
class ModelConfig:
    """The shapes and constants of a decoder, named as in the rest of trtkit.

    activation is silu or gelu. has_branch_norms: what attention and MLP return is normalised before it is added
    (Gemma 2 and 3). logit_cap c makes a logit c * tanh(logit / c).
    """

    architecture: str
    family: Family
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
    activation: Activation
    ropes: tuple[RopeConfig, ...]
    layers: tuple[LayerConfig, ...]
    moe: MoeConfig | None
    quantization: QuantConfig
    has_qkv_bias: bool
    has_dense_bias: bool
    has_mlp_bias: bool
    has_branch_norms: bool
    logit_cap: float | None
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    embedding_split_dim: int | None

    @property
    def attention_rules(self) -> tuple[AttentionRule, ...]:
        """One for every layer."""
        return tuple(layer.attention for layer in self.layers)


def read_config(folder: Path) -> ModelConfig:
    """Parse `folder`/config.json, and conversion.json where it is.

    Raises CheckpointError: REF-MISSING no such file, REF-CONFIG not this format, REF-UNSUPPORTED a model, or a feature
    of one, that this engine does not compute.
    """
    path = folder / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        refuse_unsupported(document, str(path))
        refuse_impossible(document)
        return _parse(document, _read_manifest(folder))
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"{folder} is no TensorRT-LLM checkpoint: config.json is missing",
            "convert the Hugging Face checkpoint first (trtkit convert)",
            code="REF-MISSING",
            where=str(path),
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"not the config.json of a TensorRT-LLM checkpoint: {type(error).__name__} {error}",
            "convert the checkpoint again",
            code="REF-CONFIG",
            where=str(path),
        ) from error


def _read_manifest(folder: Path) -> Mapping[str, Any]:
    """conversion.json, empty for a checkpoint that something else made."""
    path = folder / "conversion.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _parse(document: Mapping[str, Any], manifest: Mapping[str, Any]) -> ModelConfig:
    mapping, family = document["mapping"], ARCHITECTURES[document["architecture"]]
    attention_bias, mlp_bias = bool(document.get("attn_bias", False)), bool(document.get("mlp_bias", False))
    is_embedding_split = bool(document.get("use_parallel_embedding", False))
    ropes = () if family.learns_positions else _parse_ropes(document)
    moe = _parse_moe(document)
    return ModelConfig(
        architecture=document["architecture"],
        family=family,
        dtype=document["dtype"],
        num_layers=document["num_hidden_layers"],
        hidden_size=document["hidden_size"],
        num_q_heads=document["num_attention_heads"],
        num_kv_heads=document["num_key_value_heads"],
        head_dim=document["head_size"],
        intermediate_size=document["intermediate_size"],
        vocab_size=document["vocab_size"],
        max_position_embeddings=document["max_position_embeddings"],
        norm_eps=document["norm_epsilon"],
        activation=ACTIVATIONS[document["hidden_act"]],
        ropes=ropes,
        layers=_parse_layers(document, manifest, len(ropes), moe),
        moe=moe,
        quantization=_parse_quantization(document, manifest),
        has_qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        has_dense_bias=attention_bias if family.dense_bias is None else family.dense_bias,
        has_mlp_bias=mlp_bias if family.mlp_bias is None else family.mlp_bias,
        has_branch_norms=bool(document.get("inter_layernorms", False)),
        logit_cap=document.get("final_logit_softcapping"),
        tensor_parallel=mapping["tp_size"],
        pipeline_parallel=mapping["pp_size"],
        expert_parallel=mapping.get("moe_ep_size", 1),
        embedding_split_dim=document.get("embedding_sharding_dim", 0) if is_embedding_split else None,
    )


def _parse_ropes(document: Mapping[str, Any]) -> tuple[RopeConfig, ...]:
    """The rotation of all layers, and for Gemma 3 a second one of its own base for those with a window."""
    head_dim, scaling = document["head_size"], document.get("rotary_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if document["position_embedding_type"] == "long_rope":
        kind, original = "longrope", "original_max_position_embeddings"
        factors = {f"{length}_factor": document[f"longrope_scaling_{length}_factors"] for length in ("short", "long")}
        scaling = {**factors, original: document[original]}
    dim = document.get("rotary_embedding_dim") or int(head_dim * document.get("rotary_pct", 1.0))
    main = RopeConfig(document.get("rotary_base", 10000.0), kind, scaling, dim, document["max_position_embeddings"])
    local_base = document.get("rope_local_base_freq")
    return (main,) if local_base is None else (main, RopeConfig(local_base, "default", {}, dim, main.max_positions))


def _parse_layers(
    document: Mapping[str, Any], manifest: Mapping[str, Any], num_ropes: int, moe: MoeConfig | None
) -> tuple[LayerConfig, ...]:
    scale = 1.0 / math.sqrt(document.get("query_pre_attn_scalar") or document["head_size"])
    step, dense = document.get("decoder_sparse_step", 1), document.get("mlp_only_layers", ())
    rope_of = {0: (None, None), 1: (0, 0), 2: (0, 1)}[num_ropes]
    return tuple(
        LayerConfig(
            attention=AttentionRule(scale, document.get("attn_logit_softcapping"), window),
            rope=rope_of[window is not None],
            is_sparse=moe is not None and layer not in dense and (layer + 1) % step == 0,
        )
        for layer, window in enumerate(_windows(document, manifest))
    )


def _windows(document: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[int | None]:
    """The window of each layer: what conversion.json says, else the keys that Gemma 3's config.json has."""
    num_layers, window = document["num_hidden_layers"], document.get("sliding_window")
    windows = manifest.get("attention_windows")
    if windows is not None:
        if len(windows) != num_layers:
            raise ValueError(f"conversion.json names the windows of {len(windows)} layers, not {num_layers}")
        return list(windows)
    pattern = document.get("sliding_window_pattern")
    return [None if pattern and (layer + 1) % pattern == 0 else window for layer in range(num_layers)]


def _parse_moe(document: Mapping[str, Any]) -> MoeConfig | None:
    moe = document.get("moe") or {}
    if not moe.get("num_experts"):
        return None
    own_size = document.get("moe_intermediate_size") or document["intermediate_size"]
    shared = document.get("moe_shared_expert_intermediate_size") or moe.get("shared_expert_intermediate_size") or 0
    return MoeConfig(moe["num_experts"], moe["top_k"], moe["normalization_mode"] == 1, own_size, shared)


def _parse_quantization(document: Mapping[str, Any], manifest: Mapping[str, Any]) -> QuantConfig:
    section, options = document.get("quantization") or {}, manifest.get("options", {})
    own_cache = "INT4" if options.get("kv_cache_dtype") == "int4" else None
    clamp = section.get("clamp_val")
    return QuantConfig(
        algorithm=section.get("quant_algo"),
        kv_cache_algorithm=section.get("kv_cache_quant_algo") or own_cache,
        group_size=section.get("group_size", 128),
        clamp=None if clamp is None else (clamp[0], clamp[1]),
        weight_only_arch=options.get("weight_only_arch"),
    )
