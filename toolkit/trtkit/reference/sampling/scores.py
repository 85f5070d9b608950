"""Logits become scores: bias, temperature, penalties, exclusions. Knows what a token's past is, draws nothing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trtkit.errors import RequestError
from trtkit.reference.sampling.params import MIN_TEMPERATURE, SamplingParams


@dataclass(frozen=True)
class Past:
    """What the choice of one token depends on besides the logits and the request's SamplingParams.

    V vocab_size.
        counts         how often each token occurred in prompt and answer so far
        forbidden_ids  never chosen here
        bias           [V] float32, added to the logits
    """

    counts: Mapping[int, int] = field(default_factory=dict)
    forbidden_ids: tuple[int, ...] = ()
    bias: Tensor | None = None

    @property
    def is_neutral(self) -> bool:
        """Nothing beyond the SamplingParams changes the logits."""
        return not self.forbidden_ids and self.bias is None


def adjust(logits: Tensor, params: SamplingParams, past: Past) -> Tensor:
    """Bias, temperature, then the repetition, presence and frequency penalties, then the forbidden tokens.

    The order, the division of positive and multiplication of negative logits, and counting the prompt too are
    TensorRT-LLM's (cpp/tensorrt_llm/kernels/penaltyKernels.cu, batchApplyPenalty; banBadWords.cu comes after it).

    Raises RequestError REQ-SCORES when no token is left.

    V vocab_size.
        logits   [V] float32; not changed
        returns  [V] float32, a new tensor
    """
    scores = logits + past.bias if past.bias is not None else logits.clone()
    if params.temperature >= MIN_TEMPERATURE and params.temperature != 1:
        scores /= params.temperature
    if params.has_penalties and past.counts:
        ids = torch.tensor(list(past.counts), device=logits.device)
        counts = torch.tensor(list(past.counts.values()), dtype=scores.dtype, device=logits.device)
        seen = scores[ids]
        seen = torch.where(seen < 0, seen * params.repetition_penalty, seen / params.repetition_penalty)
        scores[ids] = seen - params.presence_penalty - params.frequency_penalty * counts
    if past.forbidden_ids:
        scores[list(past.forbidden_ids)] = -torch.inf
    _refuse_nothing(scores)
    return scores


def _refuse_nothing(scores: Tensor) -> None:
    """A row whose best score is infinite or NaN is no distribution."""
    if not math.isfinite(scores.max()):
        raise RequestError(
            "bias, penalties and forbidden words leave no token to choose, or scores beyond float32",
            "forbid fewer words, or send smaller numbers",
            code="REQ-SCORES",
        )
