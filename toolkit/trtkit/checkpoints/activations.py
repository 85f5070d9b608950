"""Which hidden_act a checkpoint may name. Knows names, computes nothing."""

from trtkit.checkpoints.families import Family
from trtkit.checkpoints.json_fields import JsonFields
from trtkit.checkpoints.quoted import quoted

# TensorRT-LLM's own table (ACT2FN of functional.py); the reference engine's is a part of it.
_ACTIVATIONS = (
    *("silu", "swiglu", "fast-swiglu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "openai-gelu"),
    *("quick_gelu", "geglu", "gegelu", "relu", "squared-relu", "sigmoid", "softplus", "tanh", "identity"),
)
# Their converted config always says "swiglu", so another function would be computed than the model was trained with.
_SWIGLU_FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe", "phi3")


def read_activation(fields: JsonFields, family: Family) -> str:
    """The activation of the MLPs. Raises CheckpointError CKPT-CONFIG for one that TensorRT-LLM does not compute."""
    key = family.keys.get("hidden_act", "hidden_act")
    name = fields.text(key, fields.text("hidden_act", family.hidden_act))
    known = ("silu", "swiglu") if family.name in _SWIGLU_FAMILIES else _ACTIVATIONS
    if name not in known:
        fields.bad(key, f"should be one of {', '.join(known)}, not {quoted(name)}")
    return name
