"""Numbers of a config.json that describe no decoder. Knows the format's keys and ranges, not what is computed."""

import math
from collections.abc import Mapping
from typing import Any

_COUNTS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_size",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
_POSITIVE = ("norm_epsilon", "rotary_base")
_POSITIVE_OR_NULL = ("rope_local_base_freq", "query_pre_attn_scalar")
# What a kind of rope scaling cannot do without.
_SCALING_KEYS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
}


def refuse_impossible(document: Mapping[str, Any]) -> None:
    """Raise one ValueError with every value that is no number of its kind."""
    mapping, scaling = document["mapping"], document.get("rotary_scaling") or {}
    needed = _SCALING_KEYS.get(scaling.get("rope_type", scaling.get("type", "default")), ())
    problems = [f"{key} {document[key]!r}" for key in _COUNTS if not _is_count(document[key])]
    problems += [f"{key} {mapping[key]!r}" for key in ("tp_size", "pp_size") if not _is_count(mapping[key])]
    positive = [key for key in _POSITIVE if key in document]
    positive += [key for key in _POSITIVE_OR_NULL if document.get(key) is not None]
    problems += [f"{key} {document[key]!r}" for key in positive if not _is_positive(document[key])]
    problems += [f"rotary_scaling {key} {scaling.get(key)!r}" for key in needed if not _is_positive(scaling.get(key))]
    if problems:
        raise ValueError(", ".join(problems))
    if document["num_attention_heads"] % document["num_key_value_heads"]:
        raise ValueError("num_attention_heads is no multiple of num_key_value_heads")
    if mapping.get("world_size", mapping["tp_size"] * mapping["pp_size"]) != mapping["tp_size"] * mapping["pp_size"]:
        raise ValueError(f"world_size {mapping['world_size']} is not tp_size times pp_size")


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf
