"""Greedy answers of the oracle to several prompts at once, padded on the left. Knows one oracle, no record."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trtkit.evaluate.oracle.oracle import Oracle
from trtkit.evaluate.oracle.record import OracleStep


@dataclass
class _Row:
    """One prompt's answer in the making."""

    prompt_ids: Sequence[int]
    steps: list[OracleStep] = field(default_factory=list)
    has_ended: bool = False

    @property
    def pending(self) -> int:
        """What the model reads next; a row that has ended repeats its last token, and nobody looks."""
        return self.steps[-1].token_ids[0]


def answer_batch(
    oracle: Oracle, prompts: Sequence[Sequence[int]], max_new_tokens: int, end_ids: Sequence[int]
) -> list[list[OracleStep]]:
    """The steps of each prompt's greedy answer, up to the first of end_ids or max_new_tokens.

    Padding is masked and positions count from the prompt's own beginning, so the answers are those of `Oracle.answer`
    up to the rounding of sums over masked places.
    """
    rows = [_Row(prompt_ids) for prompt_ids in prompts]
    ids, mask = _left_padded(prompts)
    cache: Any = None
    for _ in range(max_new_tokens):
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        states, logits, cache = oracle.forward_batch(ids, mask, positions, cache)
        for row, state, scores in zip(rows, states, logits, strict=True):
            if not row.has_ended:
                row.steps.append(oracle.describe(state, scores))
                row.has_ended = row.pending in end_ids
        if all(row.has_ended for row in rows):
            break
        ids = torch.tensor([[row.pending] for row in rows])
        mask = torch.cat([mask, torch.ones(len(rows), 1, dtype=mask.dtype)], dim=1)
    return [row.steps for row in rows]


def _left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """B prompts, T tokens of the longest:  ids [B, T], mask [B, T], 1 for the prompts' own tokens"""
    longest = max(len(prompt_ids) for prompt_ids in prompts)
    pads = [longest - len(prompt_ids) for prompt_ids in prompts]
    ids = torch.tensor([[0] * pad + list(prompt_ids) for pad, prompt_ids in zip(pads, prompts, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
    return ids, mask
