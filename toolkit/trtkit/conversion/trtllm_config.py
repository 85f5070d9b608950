"""config.json of a TensorRT-LLM checkpoint, per family. Knows the keys the loader reads; opens no weights.

Keys and defaults: PretrainedConfig and its subclasses. `mapping` holds only what every release from 0.17 on accepts:
older loaders refuse mapping keys they do not know.
"""

from collections.abc import Sequence
from typing import Any

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.conversion.layout import padded_vocab_size, parallel_embedding
from trtkit.conversion.options import ConversionOptions

# MoeConfig.ExpertScaleNormalizationMode.
_NO_NORMALIZATION, _RENORMALIZE = 0, 1

_WEIGHT_ALGORITHMS: dict[str, str | None] = {
    "none": None,
    "fp8": "FP8",
    "fp8_rowwise": "FP8_PER_CHANNEL_PER_TOKEN",
    "int8_weight_only": "W8A16",
    "int4_weight_only": "W4A16",
}
# What the loader leaves alone when exclude_modules is null.
_NEVER_QUANTIZED = (
    "*lm_head",
    "*router",
    "*vocab_embedding",
    "*position_embedding",
    "*block_embedding",
    "*shared_expert_gate",
)
# Meta's recipe for Llama 3.1 clamps activations here; it leaves attention and the first and last layers alone.
_CLAMP = [-1200.0, 1200.0]
_KV_ALGORITHMS: dict[str, str | None] = {"auto": None, "int4": None, "fp8": "FP8", "int8": "INT8"}


def checkpoint_config(spec: ModelSpec, options: ConversionOptions) -> dict[str, Any]:
    """The document; options.dtype must be resolved (not "auto")."""
    return {**_common(spec, options), **_FAMILY_KEYS[spec.family](spec)}


def carried_quantization(quantization: dict[str, Any], unquantized: Sequence[str]) -> dict[str, Any]:
    """The quantization section for weights that were FP8 in the source: no recipe, and what that source left alone.

    unquantized: names of linear layers that are not FP8. A list replaces the loader's own, so it starts with that one.
    """
    excluded = [*_NEVER_QUANTIZED, *unquantized] if unquantized else None
    return quantization | {"use_meta_recipe": False, "exclude_modules": excluded}


def _common(spec: ModelSpec, options: ConversionOptions) -> dict[str, Any]:
    return {
        "architecture": spec.architecture,
        "dtype": options.dtype,
        "logits_dtype": "float32",
        "vocab_size": padded_vocab_size(spec, options),
        "max_position_embeddings": spec.max_seq_len,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_q_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_size": spec.head_dim,
        "qk_layernorm": False,
        "hidden_act": spec.hidden_act,
        "intermediate_size": spec.intermediate_size,
        "norm_epsilon": spec.norm_eps,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_embedding_dim": int(spec.head_dim * spec.partial_rotary_factor),
        "use_parallel_embedding": parallel_embedding(spec, options),
        "embedding_sharding_dim": options.embedding_sharding_dim,
        "mapping": _mapping(options),
        "quantization": _quantization(options),
        "runtime_defaults": None,
    }


def _mapping(options: ConversionOptions) -> dict[str, int]:
    return {
        "world_size": options.tensor_parallel * options.pipeline_parallel,
        "gpus_per_node": 8,
        "cp_size": 1,
        "tp_size": options.tensor_parallel,
        "pp_size": options.pipeline_parallel,
        "moe_tp_size": options.tensor_parallel // options.expert_parallel,
        "moe_ep_size": options.expert_parallel,
    }


def _quantization(options: ConversionOptions) -> dict[str, Any]:
    rowwise = options.quantization == "fp8_rowwise"
    return {
        "quant_algo": _WEIGHT_ALGORITHMS[options.quantization],
        "kv_cache_quant_algo": _KV_ALGORITHMS[options.kv_cache_dtype],
        "group_size": 128,
        "smoothquant_val": 0.5,
        "clamp_val": _CLAMP if rowwise else None,
        "use_meta_recipe": rowwise,
        "has_zero_point": False,
        "pre_quant_scale": False,
        "exclude_modules": None,
    }


def _moe_keys(spec: ModelSpec, normalization: int | None) -> dict[str, Any]:
    """MoeConfig; a dense model has it too, with zero experts."""
    moe = spec.moe
    return {
        "num_experts": moe.num_experts if moe else 0,
        "shared_expert_intermediate_size": moe.shared_intermediate_size if moe else 0,
        "top_k": moe.top_k if moe else 0,
        "normalization_mode": normalization,
        "sparse_mixer_epsilon": 0.01,
        "tp_mode": 0,
        "device_limited_n_group": 0,
        "device_limited_topk_group": 0,
        "device_limited_routed_scaling_factor": 1.0,
    }


def _rotary(spec: ModelSpec) -> dict[str, Any]:
    return {"rotary_base": spec.rope_theta, "rotary_scaling": spec.rope_scaling}


def _llama(spec: ModelSpec) -> dict[str, Any]:
    keys: dict[str, Any] = {
        **_rotary(spec),
        "attn_bias": spec.attention_bias,
        "mlp_bias": spec.mlp_bias,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "moe": _moe_keys(spec, _RENORMALIZE if spec.moe else None),
        "disable_weight_only_quant_plugin": False,
        "residual_mlp": False,
        "remove_duplicated_kv_heads": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "output_multiplier_scale": 1.0,
        "fc_after_embed": False,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "layer_idx_offset": 0,
        "has_partial_lora_mask": False,
    }
    return keys | ({"hidden_act": "swiglu"} if spec.moe else {})


def _qwen(spec: ModelSpec) -> dict[str, Any]:
    moe = spec.moe
    normalization = _RENORMALIZE if moe and moe.normalize_top_k else _NO_NORMALIZATION
    keys: dict[str, Any] = {
        **_rotary(spec),
        "attn_bias": spec.attention_bias,
        "mlp_bias": False,
        "qwen_type": spec.family,
        "seq_length": 8192,
        "use_logn_attn": False,
        "num_labels": 1,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "disable_weight_only_quant_plugin": False,
        "moe": _moe_keys(spec, normalization),
        "moe_intermediate_size": moe.intermediate_size if moe else 0,
        "moe_shared_expert_intermediate_size": moe.shared_intermediate_size if moe else 0,
        "decoder_sparse_step": moe.decoder_sparse_step if moe else 1,
        "mlp_only_layers": list(moe.mlp_only_layers) if moe else [],
    }
    return keys | ({"hidden_act": "swiglu"} if moe else {})


def _gemma(spec: ModelSpec) -> dict[str, Any]:
    keys: dict[str, Any] = {
        **_rotary(spec),
        "attn_bias": spec.attention_bias,
        "mlp_bias": False,
        "inter_layernorms": spec.family != "gemma",
    }
    if spec.family != "gemma":
        keys |= spec.extra
    if spec.family == "gemma3":
        sliding = spec.layer_is_sliding
        keys |= {
            "qk_layernorm": True,
            "sliding_window": spec.sliding_window,
            "sliding_window_pattern": sliding.index(False) + 1 if False in sliding else None,
            "rope_local_base_freq": spec.rope_local_theta,
        }
    return keys


def _phi3(spec: ModelSpec) -> dict[str, Any]:
    keys: dict[str, Any] = {
        **_rotary(spec),
        "rotary_pct": spec.partial_rotary_factor,
        "hidden_act": "swiglu",
        "tie_word_embeddings": spec.tie_word_embeddings,
    }
    if spec.rope_scaling is None or spec.rope_scaling["rope_type"] != "longrope":
        return keys
    return keys | {
        "position_embedding_type": "long_rope",
        "rotary_scaling": None,
        "original_max_position_embeddings": spec.extra["original_max_position_embeddings"],
        "longrope_scaling_short_factors": spec.rope_scaling["short_factor"],
        "longrope_scaling_long_factors": spec.rope_scaling["long_factor"],
    }


def _gpt2(spec: ModelSpec) -> dict[str, Any]:
    return {
        "position_embedding_type": "learned_absolute",
        "rotary_base": 10000.0,
        "rotary_pct": 1.0,
        "rotary_scaling": None,
        "bias": True,
        "gpt_variant": "gpt2",
        "q_scaling": 1,
        "embedding_scale": None,
        "apply_query_key_layer_scaling": False,
        "inner_layernorm": False,
        "norm_before_bmm1": False,
        "moe": _moe_keys(spec, _RENORMALIZE),
    }


_FAMILY_KEYS = {
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _llama,
    "qwen2": _qwen,
    "qwen2_moe": _qwen,
    "qwen3": _qwen,
    "qwen3_moe": _qwen,
    "gemma": _gemma,
    "gemma2": _gemma,
    "gemma3": _gemma,
    "phi3": _phi3,
    "gpt2": _gpt2,
}
