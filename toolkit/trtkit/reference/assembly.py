"""Weights, cache and attention put together. Knows who needs what, computes nothing."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from torch import Tensor

from trtkit.errors import InputError
from trtkit.reference.batch import Batch, Span
from trtkit.reference.kv_cache.block_pool import BlockPool
from trtkit.reference.kv_cache.block_tables import BlockTables
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.kv_cache.retention import Retention
from trtkit.reference.kv_cache.storage import KvStorage
from trtkit.reference.model.attention import Attention, Heads
from trtkit.reference.model.attention_rule import AttentionRule
from trtkit.reference.model.config import ModelConfig
from trtkit.reference.model.decoder import Decoder
from trtkit.reference.model.heavy_attention import HeavyAttention
from trtkit.reference.model.kv_format import kv_format
from trtkit.reference.model.visibility import visibility
from trtkit.reference.model.weights import Weights

# Rows of one sequence in one pass under a small window: the cache has to hold them beside it.
BOUNDED_CHUNK = 128


@dataclass(frozen=True)
class Sizes:
    """Sequences at once, tokens of one of them, rows of one pass: at most."""

    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int

    def check(self) -> None:
        """Raise InputError REF-SIZES."""
        problems = [f"{name} is {value}" for name, value in asdict(self).items() if value < 1]
        if problems:
            raise InputError(", ".join(problems), "choose at least 1", code="REF-SIZES")


class Kept(NamedTuple):
    """What attention finds in the cache; max_keys bounds what a row without a window sees."""

    retention: Retention
    block_size: int
    max_keys: int


class Assembly(NamedTuple):
    """A decoder, its cache, and the books of the cache."""

    decoder: Decoder
    storage: KvStorage
    tables: BlockTables


def assemble(
    config: ModelConfig, weights: Weights, cache: CacheOptions, sizes: Sizes, decoder_type: type[Decoder] = Decoder
) -> Assembly:
    """Make room for `sizes` and a decoder that uses it. Raises InputError for impossible options."""
    sizes.check()
    cache.check()
    rules, retention = visibility(config, cache)
    tables = _make_tables(cache, retention, sizes)
    storage = KvStorage(
        num_layers=config.num_layers,
        num_rows=tables.pool.num_blocks * tables.block_size,
        kv_shape=(config.num_kv_heads, config.head_dim),
        like=weights.embedding,
        codec=kv_format(cache.dtype, config, weights),
        has_hitters=cache.heavy_tokens > 0,
    )
    heads = Heads(config.num_kv_heads, config.num_q_heads // config.num_kv_heads, config.head_dim)
    attention = make_attention(
        heads,
        rules,
        storage,
        weights.rotations[0] if weights.rotations else None,
        Kept(retention, tables.block_size, max_keys=sizes.max_seq_len),
    )
    return Assembly(decoder_type(config, weights, attention), storage, tables)


def make_attention(
    heads: Heads, rules: Sequence[AttentionRule], storage: KvStorage, rotations: Tensor | None, kept: Kept
) -> Attention | HeavyAttention:
    """The attention that what is kept asks for. Heavy hitters are turned by `rotations` [T, 1, D / 2]."""
    retention, block_size = kept.retention, kept.block_size
    if retention.heavy_tokens:
        assert rotations is not None, "heavy hitters have rotary positions"
        scales = [rule.scale for rule in rules]
        return HeavyAttention(heads, scales, storage, rotations, retention=retention, block_size=block_size)
    return Attention(
        heads, rules, storage, max_keys=kept.max_keys, block_size=block_size, sink_tokens=retention.sink_tokens
    )


def _make_tables(options: CacheOptions, retention: Retention, sizes: Sizes) -> BlockTables:
    """As many blocks as the options say, or as max_batch_size sequences of max_seq_len tokens need."""
    window, longest = retention.window_tokens, sizes.max_seq_len if options.window_tokens is None else sys.maxsize
    num_new_tokens = sizes.max_num_tokens if window is None else min(sizes.max_num_tokens, max(window, BOUNDED_CHUNK))
    num_blocks = sizes.max_batch_size * retention.max_blocks(longest, num_new_tokens, options.block_size)
    pool = BlockPool(options.num_blocks or num_blocks)
    return BlockTables(pool, options.block_size, options.reuse, retention, num_new_tokens)


class LoneSequence:
    """One sequence fed piece by piece, every token of which answers with its logits: no sampling, no scheduler."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._token_ids: list[int] = []
        table = assembly.tables.admit([0], max_tokens=1, reuses=False)
        assert table is not None, "the cache has no block"
        self._table = table

    @property
    def blocks(self) -> Sequence[int]:
        """The sequence's block table."""
        return self._table.blocks

    def feed(self, token_ids: Sequence[int]) -> Tensor:
        """One pass over the next tokens.

        returns  [len(token_ids), V] float32
        """
        decoder, storage, tables = self._assembly
        start, end = len(self._token_ids), len(self._token_ids) + len(token_ids)
        if not tables.grow(self._table, start, end):
            raise ValueError(f"the cache has no room for token {end - 1}")
        storage.apply(tables.take_work())
        size, blocks = tables.block_size, self.blocks
        rows = [blocks[slot // size] * size + slot % size for slot in range(start, end)]
        batch = Batch(
            list(token_ids), list(range(start, end)), rows, [Span(0, start, end, blocks)], list(range(len(token_ids)))
        )
        logits = decoder.run(batch).logits
        self._token_ids.extend(token_ids)
        tables.commit(self._table, self._token_ids, end)
        return logits
