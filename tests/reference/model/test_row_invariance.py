"""A row's logits are the same bits whatever is computed with it: alone, as a draft, in a chunk, in the whole prompt.

The matrix kernels promise no order of addition, so this is a measured property of a kind of processor; elsewhere these
tests are skipped, and the token-for-token tests in float32 are what holds.
"""

from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from row_invariance import needs_measured_processor
from tiny_trtllm import tiny_model, write_checkpoint
from trtkit.reference.batch import TILE, Batch, Tile
from trtkit.reference.kv_cache.storage import KvStorage
from trtkit.reference.model.config import read_config
from trtkit.reference.model.decoder import Decoder
from trtkit.reference.model.load import WeightLoader

NUM_TOKENS = 150
SHAPES: dict[str, dict[str, Any]] = {
    "three query heads per key head": {},
    "one query head per key head": {"num_key_value_heads": 6},
    "head size 64": {"head_dim": 64},
    "one key head": {"num_key_value_heads": 1, "attention_bias": True},
}


def new_decoder(folder: Path) -> Decoder:
    config = read_config(folder)
    weights = WeightLoader(folder, config, torch.device("cpu")).load(4 * TILE)
    kv_shape = (config.num_kv_heads, config.head_dim)
    cache = KvStorage(
        num_layers=config.num_layers, num_slots=1, capacity=4 * TILE, kv_shape=kv_shape, like=weights.embedding
    )
    return Decoder(config, weights, cache)


def rows(start: int, token_ids: list[int]) -> Batch:
    """A pass over token_ids from position `start` on, every row of which answers."""
    end = start + len(token_ids)
    cuts = [start, *range((start // TILE + 1) * TILE, end, TILE), end]
    tiles = [Tile(first - start, last - start, 0, (first // TILE + 1) * TILE, first) for first, last in pairwise(cuts)]
    positions = list(range(start, end))
    return Batch(token_ids, positions, positions, tiles, list(range(len(token_ids))))


def logits_in_passes_of(sizes: list[int], decoder: Decoder, token_ids: list[int]) -> torch.Tensor:
    parts, start = [], 0
    for size in cycle(sizes):
        parts.append(decoder.logits(rows(start, token_ids[start : start + size])))
        start += size
        if start >= len(token_ids):
            return torch.cat(parts)
    raise AssertionError("cycle never ends")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_have_the_same_bits_in_passes_of_any_size(shape: str, dtype: str, tmp_path: Path) -> None:
    needs_measured_processor(getattr(torch, dtype))
    folder = write_checkpoint(tiny_model(**SHAPES[shape]), tmp_path, dtype=dtype)
    token_ids = torch.randint(97, (NUM_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    whole = logits_in_passes_of([NUM_TOKENS], new_decoder(folder), token_ids)
    for sizes in ([1], [2], [5], [9], [64], [1, 6, 1, 100]):
        assert torch.equal(logits_in_passes_of(sizes, new_decoder(folder), token_ids), whole), sizes
