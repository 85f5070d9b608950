"""What a checkpoint may ask for and this engine does not compute. Knows config.json's keys and names, no arithmetic."""

from collections.abc import Mapping
from typing import Any

from trtkit.errors import CheckpointError
from trtkit.reference.model.families import ACTIVATIONS, ARCHITECTURES

DTYPES = ("float32", "float16", "bfloat16")
ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
POSITIONS = ("rope_gpt_neox", "long_rope", "learned_absolute")
QUANTIZATIONS = (
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "W8A16",
    "W4A16",
    "W4A16_AWQ",
    "W4A8_AWQ",
    "W8A8_SQ_PER_CHANNEL",
    "NVFP4",
)
KV_QUANTIZATIONS = ("FP8", "INT8")
# ExpertScaleNormalizationMode: none, renormalize. The others belong to routers that no family here has.
EXPERT_NORMALIZATIONS = (0, 1)

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
    "num_labels": (None, 1),
    "q_scaling": (None, 1.0),
    "embedding_scale": (None,),
    "apply_query_key_layer_scaling": (None, False),
    "inner_layernorm": (None, False),
    "norm_before_bmm1": (None, False),
    "lm_head_bias": (None, False),
}


def refuse_unsupported(document: Mapping[str, Any], where: str) -> None:
    """Raise one CheckpointError REF-UNSUPPORTED with everything that this engine would compute wrongly."""
    problems = [what for what, is_fine in _checks(document).items() if not is_fine]
    problems += [f"{key} = {document[key]}" for key, neutral in _NEUTRAL.items() if document.get(key) not in neutral]
    if problems:
        raise CheckpointError(
            "the reference engine does not compute " + ", ".join(problems),
            f"use one of {', '.join(ARCHITECTURES)} without these features, or the engine backend on a GPU",
            code="REF-UNSUPPORTED",
            where=where,
        )


def _checks(document: Mapping[str, Any]) -> dict[str, bool]:
    """What is named -> whether it is computed."""
    architecture, head_size = document["architecture"], document["head_size"]
    scaling = document.get("rotary_scaling") or {}
    rope_kind = scaling.get("rope_type", scaling.get("type", "default"))
    quantization, moe = document.get("quantization") or {}, document.get("moe") or {}
    algorithm, kv_algorithm = quantization.get("quant_algo"), quantization.get("kv_cache_quant_algo")
    family = ARCHITECTURES.get(architecture)
    return {
        f"architecture {architecture}": family is not None,
        f"dtype {document['dtype']}": document["dtype"] in DTYPES,
        f"hidden_act {document['hidden_act']}": document["hidden_act"] in ACTIVATIONS,
        f"position_embedding_type {document['position_embedding_type']}": document["position_embedding_type"]
        in POSITIONS,
        f"rotary_scaling of type {rope_kind}": rope_kind in ROPE_KINDS,
        f"quantization {algorithm}": algorithm is None or algorithm in QUANTIZATIONS,
        f"KV cache quantization {kv_algorithm}": not kv_algorithm or kv_algorithm in KV_QUANTIZATIONS,
        "weights with zero points": not quantization.get("has_zero_point"),
        f"experts normalised in mode {moe.get('normalization_mode')}": not moe.get("num_experts")
        or moe.get("normalization_mode") in EXPERT_NORMALIZATIONS,
        "norms of query and key heads": not document.get("qk_layernorm")
        or (family is not None and family.has_head_norms),
        f"a rotation of {document.get('rotary_embedding_dim')} elements": (document.get("rotary_embedding_dim") or 0)
        % 2
        == 0
        and (document.get("rotary_embedding_dim") or 0) <= head_size,
        "context parallelism": document["mapping"].get("cp_size", 1) == 1,
    }
