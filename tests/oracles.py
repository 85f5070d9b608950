"""transformers as the oracle of the reference engine's tests: models, logits, greedy answers. Knows no trtkit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM


def load_oracle(folder: Path) -> Any:
    """The model in float32, with attention spelled out, which soft caps and windows need."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def oracle_logits(model: Any, token_ids: Sequence[int]) -> Tensor:
    """The logits after every token of one pass. [T, V]"""
    logits: Tensor = model(torch.tensor([list(token_ids)])).logits[0]
    return logits


@torch.inference_mode()
def greedy_answers(model: Any, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """The continuation of each prompt, whatever end tokens it holds; prompts of equal length run together."""
    ids = torch.tensor([list(prompt) for prompt in prompts])
    answers = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [answer[ids.shape[1] :].tolist() for answer in answers]


def prompt_of(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    ids: list[int] = torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


def largest_relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """Of the largest logit of each position, the worst position counts."""
    return float(((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)).max())
