"""Families: what an architecture's name says of a decoder and config.json does not, as data. Computes nothing."""

from typing import Literal, NamedTuple

Activation = Literal["silu", "gelu"]


class Family(NamedTuple):
    """One architecture of the checkpoint format.

    The fields named *_bias are True or False, or None where config.json says it. `norm` is RMSNorm or LayerNorm (with
    a bias). `has_head_norms` normalises every query and key head. `is_gated` makes the MLP act(fc(x)) * gate(x), else
    act(fc(x)); `is_fused` stores the two as one tensor [gate ; fc]. `scales_embedding` multiplies embeddings by the
    square root of the hidden size. `learns_positions` adds a table of positions instead of rotating heads.
    """

    qkv_bias: bool | None = None
    dense_bias: bool | None = None
    mlp_bias: bool | None = None
    norm: Literal["rms", "layer"] = "rms"
    has_head_norms: bool = False
    is_gated: bool = True
    is_fused: bool = False
    scales_embedding: bool = False
    learns_positions: bool = False


_QWEN2 = Family(qkv_bias=True, dense_bias=False)
_QWEN3 = Family(has_head_norms=True)
_GEMMA = Family(scales_embedding=True)

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(),
    "MixtralForCausalLM": Family(),
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen2MoeForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": _QWEN3,
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": _GEMMA,
    "Gemma3ForCausalLM": _GEMMA._replace(has_head_norms=True),
    "Phi3ForCausalLM": Family(is_fused=True),
    "GPT2LMHeadModel": Family(
        qkv_bias=True, dense_bias=True, mlp_bias=True, norm="layer", is_gated=False, learns_positions=True
    ),
}

# hidden_act -> the function: "gelu" is the one with tanh in every spelling of the format, swiglu is silu with a gate.
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swiglu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
}
