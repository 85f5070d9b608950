"""Bytes of keys and values: per token, per sequence, per policy of what is kept. Knows no GPU."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.planning.split import Split
from trtkit.planning.weights import DTYPE_BYTES

Keep = Literal["all", "sinks and window", "heavy hitters"]
# Channels of a head that share a step and a zero, float16 each, in an INT4 cache (trtkit's reference engine has one).
INT4_GROUP = 32
_INT4_GROUP_BYTES = 4
# H2O keeps a tenth of the tokens as heavy hitters and a tenth as the most recent ones (arXiv 2306.14048, section 5).
HEAVY_FRACTION = Fraction(1, 5)


@dataclass(frozen=True)
class KvPolicy:
    """What is kept of a sequence, and how it is stored.

    kept_tokens bounds a sequence for "sinks and window" (sinks plus window) and "heavy hitters" (budget). block_size:
    tokens per block; every sequence rounds up to whole blocks.
    """

    kv_dtype: str
    block_size: int
    keep: Keep = "all"
    kept_tokens: int | None = None
    sink_tokens: int = 0

    def tokens_held(self, sequence_tokens: int) -> int:
        """Token slots that a sequence of this length occupies."""
        held = sequence_tokens if self.kept_tokens is None else min(sequence_tokens, self.kept_tokens)
        return -(-held // self.block_size) * self.block_size


def touched_blocks(num_tokens: int, block_size: int) -> int:
    """Most blocks that so many neighbouring tokens lie in, wherever they begin."""
    return num_tokens if num_tokens < 2 else (num_tokens - 2) // block_size + 2


def kv_bytes_per_token(spec: ModelSpec, model_dtype: str, kv_dtype: str) -> int:
    """Keys and values of one token in all layers: 2 * layers * KV heads * head_dim * bytes per element."""
    elements = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim
    return int(elements * element_bytes(kv_dtype, model_dtype, spec.head_dim))


def element_bytes(kv_dtype: str, model_dtype: str, head_dim: int) -> Fraction:
    """Bytes of one key or value element; INT4 packs two into a byte, and each group of them has a step and a zero."""
    match kv_dtype:
        case "fp8" | "int8":
            return Fraction(1)
        case "int4":
            return Fraction(1, 2) + Fraction(_INT4_GROUP_BYTES, min(INT4_GROUP, head_dim))
    return Fraction(DTYPE_BYTES[model_dtype])


def kv_bytes_per_token_of_rank(spec: ModelSpec, split: Split, model_dtype: str, kv_dtype: str) -> int:
    """The same for the rank with the most layers; a KV head shared by several ranks is held by each."""
    layers = max(len(split.layers(rank, spec.num_layers)) for rank in range(split.num_ranks))
    elements = 2 * layers * split.kv_heads(spec.num_kv_heads) * spec.head_dim
    return int(elements * element_bytes(kv_dtype, model_dtype, spec.head_dim))


def heavy_hitters(kv_dtype: str, block_size: int, sequence_tokens: int) -> KvPolicy:
    """H2O's budget: a fifth of the sequence."""
    return KvPolicy(kv_dtype, block_size, "heavy hitters", max(1, int(sequence_tokens * HEAVY_FRACTION)))
