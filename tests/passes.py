"""Passes of the reference decoder without an engine: one sequence in slot 0, every row answers."""

from itertools import pairwise
from pathlib import Path

import torch
from trtkit.reference.batch import TILE, Batch, Tile
from trtkit.reference.kv_cache.storage import KvStorage
from trtkit.reference.model.config import read_config
from trtkit.reference.model.decoder import Decoder
from trtkit.reference.model.load import WeightLoader


def decoder_of(
    folder: Path, *, packed: bool | None = None, capacity: int = 256, max_seq_len: int | None = None
) -> Decoder:
    """The checkpoint's decoder with an empty cache."""
    config = read_config(folder)
    weights = WeightLoader(folder, config, torch.device("cpu"), packed=packed).load(max_seq_len or capacity)
    shape = (config.num_kv_heads, config.head_dim)
    storage = KvStorage(
        num_layers=config.num_layers, num_slots=1, capacity=capacity, kv_shape=shape, like=weights.embedding
    )
    return Decoder(config, weights, storage)


def whole_prompt(token_ids: list[int]) -> Batch:
    """One pass over a prompt."""
    return rows_from(0, token_ids)


def rows_from(start: int, token_ids: list[int]) -> Batch:
    """A pass over token_ids from position `start` on."""
    end = start + len(token_ids)
    cuts = [start, *range((start // TILE + 1) * TILE, end, TILE), end]
    tiles = [Tile(first - start, last - start, 0, (first // TILE + 1) * TILE, first) for first, last in pairwise(cuts)]
    positions = list(range(start, end))
    return Batch(token_ids, positions, positions, tiles, list(range(len(token_ids))))
