"""The logits of one sequence, fed to a checkpoint's decoder without an engine around it."""

from pathlib import Path

import torch
from trtkit.reference.assembly import LoneSequence, Sizes, assemble
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.model.config import read_config
from trtkit.reference.model.load import WeightLoader

PLAIN = CacheOptions(reuse="off")


def lone_sequence(
    folder: Path, *, packed: bool | None = None, max_seq_len: int = 256, cache: CacheOptions = PLAIN
) -> LoneSequence:
    """An empty sequence that may take max_seq_len tokens, all in one piece if need be."""
    config = read_config(folder)
    weights = WeightLoader(folder, config, torch.device("cpu"), packed=packed).load(max_seq_len)
    return LoneSequence(assemble(config, weights, cache, Sizes(1, max_seq_len, max_seq_len)))
