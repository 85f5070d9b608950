"""Every kind of rope scaling is transformers', within the original context and far beyond it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lone_sequence import lone_sequence
from oracles import largest_relative_difference, load_oracle, oracle_logits, prompt_of
from tiny import VOCAB_SIZE, tiny_checkpoint
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions

ORIGINAL, TRAINED = 48, 192
"""Tokens of the original context, and max_position_embeddings."""

PAIRS = 8
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.05 * pair for pair in range(PAIRS)],
    "long_factor": [1.0 + 0.5 * pair for pair in range(PAIRS)],
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
SCALINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama3": (
        "llama",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": ORIGINAL,
            }
        },
    ),
    "yarn": ("qwen2", {"rope_scaling": YARN}),
    "yarn with betas": ("llama", {"rope_scaling": YARN | {"beta_fast": 3.0, "beta_slow": 0.5}}),
    "yarn without rounding": ("llama", {"rope_scaling": YARN | {"truncate": False}}),
    "yarn with two mscales": ("llama", {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}}),
    "yarn with a factor of its own": ("qwen3", {"rope_scaling": YARN | {"attention_factor": 1.3}, "head_dim": 32}),
    "longrope": ("phi3", {"rope_scaling": LONGROPE, "original_max_position_embeddings": ORIGINAL}),
    "longrope of part of each head": (
        "phi3",
        {
            "rope_scaling": LONGROPE | {"short_factor": [1.1] * 4, "long_factor": [3.0, 2.0, 1.5, 4.0]},
            "original_max_position_embeddings": ORIGINAL,
            "partial_rotary_factor": 0.5,
        },
    ),
    "two bases": ("gemma3", {"rope_theta": 5000.0, "rope_local_base_freq": 100.0}),
    "two bases, one scaled": (
        "gemma3",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
    ),
    "part of each head": ("phi3", {"partial_rotary_factor": 0.5}),
}


def converted(folder: Path, family: str, **overrides: Any) -> tuple[Path, Path]:
    """A checkpoint and its conversion."""
    own = {"original_max_position_embeddings": TRAINED} if family == "phi3" else {}
    settings = {"max_position_embeddings": TRAINED, **own, **overrides}
    source = tiny_checkpoint(folder / "source", family, **settings)
    (folder / "out").mkdir()
    convert_checkpoint(source, folder / "out", ConversionOptions(dtype="float32"))
    return source, folder / "out"


@pytest.mark.parametrize("kind", SCALINGS)
def test_angles_are_those_of_transformers_beyond_the_original_context(kind: str, tmp_path: Path) -> None:
    family, overrides = SCALINGS[kind]
    source, out = converted(tmp_path, family, **overrides)
    token_ids = prompt_of(180, VOCAB_SIZE)
    ours = lone_sequence(out).feed(token_ids)
    assert largest_relative_difference(ours, oracle_logits(load_oracle(source), token_ids)) < 1e-4


def test_longrope_uses_its_short_factors_where_no_text_can_leave_the_original_context(tmp_path: Path) -> None:
    family, overrides = SCALINGS["longrope"]
    source, out = converted(tmp_path, family, **overrides)
    token_ids = prompt_of(ORIGINAL, VOCAB_SIZE)
    ours = lone_sequence(out, max_seq_len=ORIGINAL).feed(token_ids)
    assert largest_relative_difference(ours, oracle_logits(load_oracle(source), token_ids)) < 1e-4


def test_dynamic_scaling_is_transformers_text_generated_token_by_token(tmp_path: Path) -> None:
    """transformers grows the base with every token; keys that are in its cache already keep their angle."""
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    source, out = converted(tmp_path, "llama", max_position_embeddings=ORIGINAL, rope_scaling=scaling)
    prompt = torch.tensor([prompt_of(8, VOCAB_SIZE)])
    answer = load_oracle(source).generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=110,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    ours = lone_sequence(out).feed(answer.sequences[0].tolist())
    assert largest_relative_difference(ours[7:-1], torch.cat(answer.logits)) < 1e-4
