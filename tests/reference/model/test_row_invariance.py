"""A row's logits are the same bits whatever is computed with it: alone, as a draft, in a chunk, in the whole prompt.

The matrix kernels promise no order of addition, so this is a measured property of a kind of processor; elsewhere these
tests are skipped, and the token-for-token tests in float32 are what holds.
"""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from lone_sequence import lone_sequence
from oracles import prompt_of
from quantized_oracle import input_maxima, write_calibration
from row_invariance import needs_measured_processor
from tiny import FAMILIES, VOCAB_SIZE, tiny_checkpoint
from tiny_trtllm import tiny_model, write_checkpoint
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions
from trtkit.reference.assembly import LoneSequence
from trtkit.reference.kv_cache.options import CacheOptions

NUM_TOKENS = 150
SHAPES: dict[str, dict[str, Any]] = {
    "three query heads per key head": {},
    "one query head per key head": {"num_key_value_heads": 6},
    "head size 64": {"head_dim": 64},
    "one key head": {"num_key_value_heads": 1, "attention_bias": True},
}


def logits_in_passes_of(sizes: list[int], sequence: LoneSequence, token_ids: list[int]) -> torch.Tensor:
    parts, start = [], 0
    for size in cycle(sizes):
        parts.append(sequence.feed(token_ids[start : start + size]))
        start += size
        if start >= len(token_ids):
            return torch.cat(parts)
    raise AssertionError("cycle never ends")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_its_bits(family: str, tmp_path: Path) -> None:
    """Experts above all: which rows visit an expert together differs from pass to pass."""
    needs_measured_processor(torch.float32)
    source = tiny_checkpoint(tmp_path / "source", family)
    (tmp_path / "out").mkdir()
    convert_checkpoint(source, tmp_path / "out", ConversionOptions(dtype="float32"))
    token_ids = prompt_of(NUM_TOKENS, VOCAB_SIZE)
    whole = logits_in_passes_of([NUM_TOKENS], lone_sequence(tmp_path / "out"), token_ids)
    for sizes in ([1], [2], [9], [1, 6, 1, 100]):
        assert torch.equal(logits_in_passes_of(sizes, lone_sequence(tmp_path / "out"), token_ids), whole), sizes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("quantization", ["fp8", "fp8_rowwise", "int4_weight_only"])
def test_quantised_layers_keep_their_bits(quantization: Any, dtype: Any, tmp_path: Path) -> None:
    """A row's inputs are rounded by its own numbers, whatever rows stand beside it."""
    needs_measured_processor(getattr(torch, dtype))
    source = tiny_checkpoint(tmp_path / "source", "llama", hidden_size=128, intermediate_size=192)
    calibration = write_calibration(tmp_path / "calibration.json", input_maxima(source))
    (tmp_path / "out").mkdir()
    options = ConversionOptions(dtype=dtype, quantization=quantization, calibration=calibration)
    convert_checkpoint(source, tmp_path / "out", options)
    token_ids = prompt_of(NUM_TOKENS, VOCAB_SIZE)
    whole = logits_in_passes_of([NUM_TOKENS], lone_sequence(tmp_path / "out"), token_ids)
    for sizes in ([1], [2], [1, 6, 1, 100]):
        assert torch.equal(logits_in_passes_of(sizes, lone_sequence(tmp_path / "out"), token_ids), whole), sizes


CACHES = {
    "blocks of 64": CacheOptions(reuse="off"),
    "blocks of 32": CacheOptions(reuse="off", block_size=32),
    "blocks of 8": CacheOptions(reuse="off", block_size=8),
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_have_the_same_bits_in_passes_of_any_size(shape: str, dtype: str, cache: str, tmp_path: Path) -> None:
    needs_measured_processor(getattr(torch, dtype))
    folder = write_checkpoint(tiny_model(**SHAPES[shape]), tmp_path, dtype=dtype)
    token_ids = torch.randint(97, (NUM_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    whole = logits_in_passes_of([NUM_TOKENS], lone_sequence(folder, cache=CACHES[cache]), token_ids)
    for sizes in ([1], [2], [5], [9], [64], [1, 6, 1, 100]):
        again = logits_in_passes_of(sizes, lone_sequence(folder, cache=CACHES[cache]), token_ids)
        assert torch.equal(again, whole), sizes
