"""Every family that is converted is computed as transformers computes it: logits at all positions, in float32.

The checkpoints go through the converter, which shares no code with the loader, so that neither can hide the other's
mistakes. Prompts are longer than the tiny models' windows of 16 tokens.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lone_sequence import lone_sequence
from oracles import largest_relative_difference, load_oracle, oracle_logits, prompt_of
from tiny import FAMILIES, VOCAB_SIZE, tiny_checkpoint
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions

TOLERANCE = 1e-4
NUM_TOKENS = 150
MOE = ("mixtral", "qwen2_moe", "qwen3_moe")
Convert = Callable[..., Path]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """One checkpoint per family, with a vocabulary that no number of ranks divides."""
    root = tmp_path_factory.mktemp("families")

    def source(family: str) -> Path:
        folder = root / family
        return folder if folder.exists() else tiny_checkpoint(folder, family, vocab_size=VOCAB_SIZE + 1)

    return source


def converted(source: Path, out: Path, **options: Any) -> Path:
    out.mkdir()
    convert_checkpoint(source, out, ConversionOptions(dtype="float32", **options))
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str, sources: Callable[[str], Path], tmp_path: Path) -> None:
    token_ids = prompt_of(NUM_TOKENS, VOCAB_SIZE)
    ours = lone_sequence(converted(sources(family), tmp_path / "out")).feed(token_ids)
    theirs = oracle_logits(load_oracle(sources(family)), token_ids)
    assert largest_relative_difference(ours, theirs) < TOLERANCE


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "windows in the upper layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "windows where no pattern says so": (
        "gemma3",
        {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
    "a window over experts": ("mixtral", {"sliding_window": 16}),
    "biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "one key head": ("gemma", {"num_key_value_heads": 1}),
    "a tied head": ("qwen3", {"tie_word_embeddings": True}),
    "weights that are not scaled to one": ("qwen3_moe", {"norm_topk_prob": False, "num_experts_per_tok": 3}),
    "weights that are, and a shared expert": ("qwen2_moe", {"norm_topk_prob": True, "mlp_only_layers": [0, 2]}),
    "no caps": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_config_json_may_change_in_a_family_is_followed(variant: str, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    source = tiny_checkpoint(tmp_path / "source", family, **overrides)
    token_ids = prompt_of(100, VOCAB_SIZE)
    ours = lone_sequence(converted(source, tmp_path / "out")).feed(token_ids)
    assert largest_relative_difference(ours, oracle_logits(load_oracle(source), token_ids)) < TOLERANCE


@pytest.mark.parametrize("axis", [0, 1])
def test_an_embedding_that_is_cut_over_the_ranks_is_joined(
    axis: Any, sources: Callable[[str], Path], tmp_path: Path
) -> None:
    cut = {"tensor_parallel": 2, "use_parallel_embedding": True, "embedding_sharding_dim": axis}
    token_ids = prompt_of(20, VOCAB_SIZE)
    whole = lone_sequence(converted(sources("llama"), tmp_path / "whole")).feed(token_ids)
    assert torch.equal(lone_sequence(converted(sources("llama"), tmp_path / "cut", **cut)).feed(token_ids), whole)


LAYOUTS = [
    (family, tp, pp, ep)
    for family in FAMILIES
    for tp, pp, ep in ((2, 1, 1), (4, 1, 1), (1, 2, 1), (2, 2, 1), (2, 1, 2), (4, 1, 2), (2, 2, 2))
    if ep == 1 or family in MOE
]


@pytest.mark.parametrize(("family", "tp", "pp", "ep"), LAYOUTS)
def test_ranks_are_assembled_to_the_same_model(
    family: str, tp: int, pp: int, ep: int, sources: Callable[[str], Path], tmp_path: Path
) -> None:
    parallelism = {"tensor_parallel": tp, "pipeline_parallel": pp, "expert_parallel": ep}
    token_ids = prompt_of(20, VOCAB_SIZE)
    whole = lone_sequence(converted(sources(family), tmp_path / "whole")).feed(token_ids)
    ranks = converted(sources(family), tmp_path / "ranks", **parallelism)
    assert torch.equal(lone_sequence(ranks).feed(token_ids), whole)
