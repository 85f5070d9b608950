"""TrtllmConfig: config.json of a TensorRT-LLM checkpoint, every key read with its type. Opens no rank file."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtkit.checkpoints.json_fields import JsonFields, read_json_fields
from trtkit.checkpoints.model_spec import ModelSpec, MoeSpec
from trtkit.errors import CheckpointError
from trtkit.planning.split import Split

_REQUIRED = ("architecture", "dtype", "hidden_size", "num_hidden_layers", "num_attention_heads")
_FAMILY_OF = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "GPT2LMHeadModel": "gpt2",
}
_ALGORITHM = re.compile(r"[A-Za-z0-9_]{1,64}")
_UNSET = (-1, 0)  # Mapping's own ways to leave moe_ep_size to its default


@dataclass(frozen=True)
class TrtllmConfig:
    """split: the ranks that have a file each. spec: the model as far as its tensors follow from it, None for an
    architecture that trtkit does not convert. embedding_cut: the axis over which the ranks share the embedding, None
    where it is whole or cut as the family has it.
    """

    num_layers: int
    vocab_size: int | None
    split: Split
    quant_algorithm: str | None
    kv_algorithm: str | None
    embedding_cut: int | None
    spec: ModelSpec | None


def read_trtllm_config(path: Path) -> TrtllmConfig:
    """Read the file. Raises CheckpointError TRT-CONFIG when it is missing or damaged, or a key contradicts its type."""
    with as_trt_config():
        fields = read_json_fields(path)
        missing = [key for key in _REQUIRED if not fields.has(key)]
        if missing:
            raise CheckpointError(f"lacks {', '.join(missing)}", "", where=fields.where)
        quantization = fields.object("quantization") or JsonFields({}, fields.where)
        cut = fields.count("embedding_sharding_dim", 0) if fields.flag("use_parallel_embedding", False) else None
        return TrtllmConfig(
            num_layers=fields.size("num_hidden_layers"),
            vocab_size=fields.size("vocab_size") if fields.has("vocab_size") else None,
            split=_split(fields),
            quant_algorithm=_algorithm(quantization, "quant_algo"),
            kv_algorithm=_algorithm(quantization, "kv_cache_quant_algo"),
            embedding_cut=cut,
            spec=_spec(fields),
        )


@contextmanager
def as_trt_config() -> Iterator[None]:
    """Speak of what is wrong in the words of this format."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(
            error.cause,
            "give the directory of a TensorRT-LLM checkpoint, or convert again",
            code="TRT-CONFIG",
            where=error.where,
        ) from None


def _split(fields: JsonFields) -> Split:
    """The mapping, proven as TensorRT-LLM's Mapping proves it. Ranks of context parallelism share their files."""
    mapping = fields.object("mapping") or JsonFields({}, fields.where)
    tensor, pipeline, context = (mapping.size(key, 1) for key in ("tp_size", "pp_size", "cp_size"))
    expert = 1 if mapping.values.get("moe_ep_size") in _UNSET else mapping.size("moe_ep_size", 1)
    world = tensor * pipeline * context
    if mapping.size("world_size", world) != world:
        mapping.bad("world_size", f"should be {world}: tp_size {tensor} x pp_size {pipeline} x cp_size {context}")
    if tensor % expert:
        mapping.bad("moe_ep_size", f"{expert} does not divide tp_size {tensor}")
    layers = fields.size("num_hidden_layers")
    if pipeline > layers:
        mapping.bad("pp_size", f"{pipeline} is more stages than the {layers} layers")
    return Split(tensor, pipeline, expert)


def _algorithm(fields: JsonFields, key: str) -> str | None:
    """The name of an algorithm, as any release may have it."""
    name = fields.text(key) if fields.has(key) else None
    if name is not None and not _ALGORITHM.fullmatch(name):
        fields.bad(key, "should be an algorithm's name, as FP8")
    return name


def _spec(fields: JsonFields) -> ModelSpec | None:
    """The model; what no tensor follows from (rope, eps, activation) is left at a constant."""
    architecture, dtype = fields.text("architecture"), fields.text("dtype")
    family = _FAMILY_OF.get(architecture)
    if family is None:
        return None
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    return ModelSpec(
        family=family,
        architecture=architecture,
        num_layers=fields.size("num_hidden_layers"),
        hidden_size=hidden,
        num_q_heads=heads,
        num_kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=fields.size("head_size", max(1, hidden // heads)),
        intermediate_size=fields.size("intermediate_size", 4 * hidden),
        vocab_size=fields.size("vocab_size"),
        max_seq_len=fields.size("max_position_embeddings") if family == "gpt2" else 0,
        norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        partial_rotary_factor=1.0,
        rope_local_theta=None,
        hidden_act="",
        tie_word_embeddings=False,
        attention_bias=family == "gpt2" or fields.flag("attn_bias", family.startswith("qwen2")),
        mlp_bias=family == "gpt2" or fields.flag("mlp_bias", False),
        qk_norm=family in ("qwen3", "qwen3_moe", "gemma3"),
        norms_add_one=False,
        sliding_window=None,
        layer_is_sliding=(),
        dtype=dtype,
        moe=_moe(fields),
        extra={},
    )


def _moe(fields: JsonFields) -> MoeSpec | None:
    moe = fields.object("moe")
    num_experts = moe.count("num_experts", 0) if moe is not None else 0
    if not num_experts:
        return None
    own = "moe_intermediate_size"
    has_own = fields.has(own) and fields.count(own) > 0
    return MoeSpec(
        num_experts=num_experts,
        top_k=1,
        intermediate_size=fields.size(own if has_own else "intermediate_size"),
        shared_intermediate_size=fields.count("moe_shared_expert_intermediate_size", 0),
        normalize_top_k=False,
        decoder_sparse_step=fields.size("decoder_sparse_step", 1),
        mlp_only_layers=fields.ids("mlp_only_layers"),
    )
