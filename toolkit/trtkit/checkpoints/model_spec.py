"""ModelSpec: the shape of a model as its config.json states it. Knows config.json, opens no weights.

One reader for every family: what differs between them is data (families.py). No transformers import: a config that an
installed transformers is too old for is read all the same.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.checkpoints.activations import read_activation
from trtkit.checkpoints.families import FAMILIES, Family
from trtkit.checkpoints.json_fields import JsonFields, read_json_fields
from trtkit.checkpoints.quoted import quoted
from trtkit.checkpoints.rope import RopeSpec, read_rope
from trtkit.checkpoints.stored_tensor import FLOAT_DTYPES
from trtkit.errors import CheckpointError


@dataclass(frozen=True)
class MoeSpec:
    """The experts. intermediate_size is one expert's; a layer is sparse when its index says so (`is_sparse`)."""

    num_experts: int
    top_k: int
    intermediate_size: int
    shared_intermediate_size: int
    normalize_top_k: bool
    decoder_sparse_step: int
    mlp_only_layers: tuple[int, ...]

    def is_sparse(self, layer: int) -> bool:
        """Whether `layer` has experts instead of one MLP (Qwen's rule; true everywhere for Mixtral)."""
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0

    def has_dense_layer(self, num_layers: int) -> bool:
        """Whether any layer has an MLP instead of experts."""
        return self.decoder_sparse_step > 1 or any(layer < num_layers for layer in self.mlp_only_layers)


@dataclass(frozen=True)
class ModelSpec:
    """What the converter, the checks and the planner need to know of a model.

    max_seq_len is max_position_embeddings; norm_eps is of RMSNorm, for GPT-2 of LayerNorm. rope_scaling keeps the
    config's object, with "rope_type" always there; None is plain rope. sliding_window is the window of the layers for
    which `layer_is_sliding` is true. extra holds what only one family has (Gemma's soft caps, ...).
    """

    family: str
    architecture: str
    num_layers: int
    hidden_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_seq_len: int
    norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    partial_rotary_factor: float
    rope_local_theta: float | None
    hidden_act: str
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    qk_norm: bool
    norms_add_one: bool
    sliding_window: int | None
    layer_is_sliding: tuple[bool, ...]
    dtype: str | None
    moe: MoeSpec | None
    extra: dict[str, Any]


def read_model_spec(folder: Path) -> ModelSpec:
    """Read `folder`/config.json.

    Raises CheckpointError: CKPT-CONFIG (missing, damaged, a key of the wrong type, an unknown activation), CKPT-ARCH
    (an architecture trtkit does not convert), CKPT-ROPE (an unknown or impossible rope), CKPT-HEAD-SIZE, CKPT-HEADS
    (heads that do not fit each other).
    """
    fields = read_json_fields(folder / "config.json")
    spec = _spec(fields, _family_of(fields))
    _check_heads(spec, fields.where)
    return spec


def _family_of(fields: JsonFields) -> Family:
    model_type = fields.text("model_type", "")
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    architectures = fields.items("architectures")
    for family in FAMILIES.values():
        if family.architecture in architectures:
            return family
    raise CheckpointError(
        f"the architecture {quoted((architectures or [model_type or 'unnamed'])[0])} is not one trtkit converts",
        f"use a checkpoint of one of: {', '.join(sorted(family.name for family in FAMILIES.values()))}",
        code="CKPT-ARCH",
        where=fields.where,
    )


def _spec(fields: JsonFields, family: Family) -> ModelSpec:
    def key(name: str) -> str:
        return family.keys.get(name, name)

    hidden_size = fields.size(key("hidden_size"))
    num_layers = fields.size(key("num_hidden_layers"))
    num_q_heads = fields.size(key("num_attention_heads"))
    head_dim = fields.size("head_dim", family.head_dim or max(1, hidden_size // num_q_heads))
    rope = read_rope(fields, family, head_dim) if family.has_rope else RopeSpec(10000.0, 1.0, None, None)
    return ModelSpec(
        family=family.name,
        architecture=family.architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_q_heads=num_q_heads,
        num_kv_heads=fields.size("num_key_value_heads", num_q_heads),
        head_dim=head_dim,
        intermediate_size=fields.size(key("intermediate_size"), 4 * hidden_size if family.name == "gpt2" else None),
        vocab_size=fields.size("vocab_size"),
        max_seq_len=fields.size(key("max_position_embeddings")),
        norm_eps=fields.number(family.keys.get("norm_eps", "rms_norm_eps"), family.norm_eps),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        partial_rotary_factor=rope.partial_rotary_factor,
        rope_local_theta=rope.local_theta,
        hidden_act=read_activation(fields, family),
        tie_word_embeddings=fields.flag("tie_word_embeddings", family.tie_word_embeddings),
        attention_bias=_attention_bias(fields, family),
        mlp_bias=family.name == "gpt2" or fields.flag("mlp_bias", False),
        qk_norm=family.qk_norm,
        norms_add_one=family.norms_add_one,
        sliding_window=_sliding_window(fields, family),
        layer_is_sliding=_sliding_layers(fields, family, num_layers),
        dtype=_dtype(fields),
        moe=_moe(fields, family),
        extra=_extra(fields, family),
    )


def _attention_bias(fields: JsonFields, family: Family) -> bool:
    return family.qkv_bias if family.qkv_bias is not None else fields.flag("attention_bias", False)


def _dtype(fields: JsonFields) -> str | None:
    """The dtype config.json names, under either of its two keys; None when it names none of the float types."""
    name = fields.text("dtype" if fields.has("dtype") else "torch_dtype", "").removeprefix("torch.")
    return name if name in FLOAT_DTYPES else None


def _sliding_window(fields: JsonFields, family: Family) -> int | None:
    """The window in tokens; an explicit null means none, an absent key means the family's default."""
    if family.name.startswith("qwen") and not fields.flag("use_sliding_window", False):
        return None
    if "sliding_window" not in fields.values:
        return family.sliding_window
    return fields.size("sliding_window") if fields.has("sliding_window") else None


def _sliding_layers(fields: JsonFields, family: Family, num_layers: int) -> tuple[bool, ...]:
    """Which layers use the window: layer_types where config.json has it, else the family's rule."""
    if _sliding_window(fields, family) is None or num_layers > 10_000:
        return ()
    types = fields.items("layer_types")
    if types:
        if len(types) != num_layers:
            fields.bad("layer_types", f"should name {num_layers} layers, not {len(types)}")
        return tuple(kind == "sliding_attention" for kind in types)
    if family.name == "gemma2":
        return tuple(layer % 2 == 0 for layer in range(num_layers))
    if family.name == "gemma3":
        pattern = fields.size("sliding_window_pattern", 6)
        return tuple((layer + 1) % pattern != 0 for layer in range(num_layers))
    first = fields.count("max_window_layers", 28) if family.name.startswith("qwen") else 0
    return tuple(layer >= first for layer in range(num_layers))


def _moe(fields: JsonFields, family: Family) -> MoeSpec | None:
    if not family.is_moe:
        return None
    if family.name == "mixtral":
        return MoeSpec(
            num_experts=fields.size("num_local_experts", fields.size("num_experts", 8)),
            top_k=fields.size("num_experts_per_tok", 2),
            intermediate_size=fields.size("intermediate_size"),
            shared_intermediate_size=0,
            normalize_top_k=True,
            decoder_sparse_step=1,
            mlp_only_layers=(),
        )
    shared = fields.count("shared_expert_intermediate_size") if family.name == "qwen2_moe" else 0
    return MoeSpec(
        num_experts=fields.size("num_experts", fields.values.get("num_local_experts")),
        top_k=fields.size("num_experts_per_tok"),
        intermediate_size=fields.size("moe_intermediate_size"),
        shared_intermediate_size=shared,
        normalize_top_k=fields.flag("norm_topk_prob", False),
        decoder_sparse_step=fields.size("decoder_sparse_step", 1),
        mlp_only_layers=fields.ids("mlp_only_layers"),
    )


# family -> the keys only it has -> what an absent key means.
_EXTRA_DEFAULTS: dict[str, dict[str, float]] = {
    "gemma2": {"query_pre_attn_scalar": 256, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    "gemma3": {"query_pre_attn_scalar": 256},
    "phi3": {"original_max_position_embeddings": 4096},
}


def _extra(fields: JsonFields, family: Family) -> dict[str, Any]:
    defaults = _EXTRA_DEFAULTS.get(family.name, {})
    values = {key: fields.values.get(key, default) for key, default in defaults.items()}
    for key, value in values.items():
        if value is not None:
            fields.number(key, defaults[key])
    return values


def _check_heads(spec: ModelSpec, where: str) -> None:
    if spec.num_q_heads % spec.num_kv_heads:
        raise CheckpointError(
            f"{spec.num_q_heads} attention heads cannot share {spec.num_kv_heads} key-value heads",
            "compare num_attention_heads and num_key_value_heads with the original config.json",
            code="CKPT-HEADS",
            where=where,
        )
    if spec.head_dim % 8 or spec.head_dim > 256:
        raise CheckpointError(
            f"heads of {spec.head_dim} elements are not supported",
            "TensorRT-LLM's attention takes head sizes that are multiples of 8 up to 256",
            code="CKPT-HEAD-SIZE",
            where=where,
        )
