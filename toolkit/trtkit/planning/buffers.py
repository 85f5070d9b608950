"""Bytes of activations and logits on one rank. An estimate: TensorRT plans its own reuse of buffers."""

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.planning.split import Split
from trtkit.planning.weights import DTYPE_BYTES, FLOAT32_BYTES


def activation_bytes(spec: ModelSpec, split: Split, dtype: str, max_num_tokens: int) -> int:
    """The widest point of a layer: residual, its norm, and gate and up (or q, k and v) of every token of a step."""
    moe = spec.moe
    inner = moe.intermediate_size * moe.top_k if moe else spec.intermediate_size
    mlp = 2 * inner // split.tensor
    qkv = (spec.num_q_heads // split.tensor + 2 * split.kv_heads(spec.num_kv_heads)) * spec.head_dim
    return max_num_tokens * (3 * spec.hidden_size + max(mlp, qkv)) * DTYPE_BYTES[dtype]


def logits_bytes(spec: ModelSpec, max_batch_size: int, tokens: int) -> int:
    """float32 logits of so many tokens of every sequence (TensorRT-LLM issue #1481: tokens x vocabulary x bytes)."""
    return max_batch_size * tokens * spec.vocab_size * FLOAT32_BYTES
