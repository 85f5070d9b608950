"""Which tensors a rank of a TensorRT-LLM checkpoint must hold by its own config.json, and their shapes. Pure."""

from collections.abc import Mapping
from typing import Any

from trtkit.checking.subjects.trtllm_checkpoint import TrtllmCheckpoint
from trtkit.checkpoints.model_spec import ModelSpec, MoeSpec
from trtkit.planning.split import Split
from trtkit.planning.tensors import rank_tensors

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
Shape = tuple[int, ...]


def expected_tensors(checkpoint: TrtllmCheckpoint, rank: int) -> dict[str, Shape]:
    """Name -> shape for a rank; empty for an architecture that trtkit does not convert."""
    spec = spec_of_config(checkpoint.config)
    if spec is None or rank >= checkpoint.world_size:
        return {}
    expert = int((checkpoint.config.get("mapping") or {}).get("moe_ep_size") or 1)
    split = Split(checkpoint.tensor_parallel, checkpoint.pipeline_parallel, max(1, expert))
    shapes = {tensor.name: tensor.shape for tensor in rank_tensors(spec, split, rank)}
    return shapes | _cut_embedding(checkpoint, spec, shapes)


def spec_of_config(config: Mapping[str, Any]) -> ModelSpec | None:
    """The model behind a checkpoint's config.json, or None for an architecture that is not known here."""
    family = _FAMILY_OF.get(config["architecture"])
    if family is None:
        return None
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    return ModelSpec(
        family=family,
        architecture=config["architecture"],
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=hidden,
        num_q_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_size") or hidden // heads),
        intermediate_size=int(config.get("intermediate_size") or 4 * hidden),
        vocab_size=int(config["vocab_size"]),
        max_seq_len=int(config.get("max_position_embeddings") or 0),
        norm_eps=float(config.get("norm_epsilon") or 1e-5),
        rope_theta=float(config.get("rotary_base") or 10000.0),
        rope_scaling=config.get("rotary_scaling"),
        partial_rotary_factor=1.0,
        rope_local_theta=None,
        hidden_act=str(config.get("hidden_act")),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=family == "gpt2" or bool(config.get("attn_bias", family.startswith("qwen2"))),
        mlp_bias=family == "gpt2" or bool(config.get("mlp_bias", False)),
        qk_norm=family in ("qwen3", "qwen3_moe", "gemma3"),
        norms_add_one=False,
        sliding_window=None,
        layer_is_sliding=(),
        dtype=config["dtype"],
        moe=_moe(config),
        extra={},
    )


def _moe(config: Mapping[str, Any]) -> MoeSpec | None:
    moe = config.get("moe") or {}
    if not moe.get("num_experts"):
        return None
    return MoeSpec(
        num_experts=int(moe["num_experts"]),
        top_k=int(moe.get("top_k") or 1),
        intermediate_size=int(config.get("moe_intermediate_size") or config["intermediate_size"]),
        shared_intermediate_size=int(config.get("moe_shared_expert_intermediate_size") or 0),
        normalize_top_k=False,
        decoder_sparse_step=int(config.get("decoder_sparse_step") or 1),
        mlp_only_layers=tuple(config.get("mlp_only_layers") or ()),
    )


def _cut_embedding(checkpoint: TrtllmCheckpoint, spec: ModelSpec, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The embedding's shape when config.json says that it is cut, by vocabulary (0) or by hidden size (1)."""
    name, ranks = "transformer.vocab_embedding.weight", checkpoint.tensor_parallel
    if name not in shapes or not checkpoint.config.get("use_parallel_embedding"):
        return {}
    if checkpoint.config.get("embedding_sharding_dim", 0) == 1:
        return {name: (spec.vocab_size, spec.hidden_size // ranks)}
    return {name: (-(-spec.vocab_size // ranks), spec.hidden_size)}
