"""What a caller asks of the engine and what comes back step by step. Knows no tensors, no scheduling."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trtkit.acceptance import Acceptance
from trtkit.errors import RequestError, TrtkitError
from trtkit.reference.sampling.noise import derived_seed
from trtkit.reference.sampling.params import SamplingParams

FinishReason = Literal["length", "end_id", "stop_words", "cancelled", "error"]
FloatArray = NDArray[np.floating[Any]]


MAX_BEAM_WIDTH = 4


@dataclass(frozen=True)
class BeamRules:
    """Beam search instead of sampling: top-k, top-p and min-p have no say, what changes the logits does.

    A finished beam is ranked by the sum of its log probabilities over its length to the power of length_penalty.
    early_stopping ends the search as soon as `width` beams are finished.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool = False

    def check(self) -> None:
        """Raise RequestError REQ-BEAM."""
        if not 2 <= self.width <= MAX_BEAM_WIDTH or not math.isfinite(self.length_penalty):
            raise RequestError(
                f"a beam search of width {self.width} with length penalty {self.length_penalty}",
                f"ask for 2 to {MAX_BEAM_WIDTH} beams and a finite penalty",
                code="REQ-BEAM",
            )


@dataclass(frozen=True)
class Beam:
    """One sequence of a beam search: its answer, and the sum of its log probabilities; score once it is finished."""

    token_ids: tuple[int, ...]
    cum_log_prob: float
    log_probs: tuple[float, ...]
    score: float = 0.0
    logits: tuple[FloatArray, ...] = field(default=(), compare=False)

    def scored(self, length_weight: float) -> "Beam":
        """The same beam, finished."""
        return replace(self, score=self.cum_log_prob / length_weight)


@dataclass(frozen=True)
class Returns:
    """What comes back besides tokens.

    log_probs: of every token, under the distribution after bias, temperature and penalties and before any cut.
    generation_logits: the model's own logits at every token. context_logits: the same at every prompt token; such a
    prompt is computed whole, without reuse.
    """

    log_probs: bool = False
    generation_logits: bool = False
    context_logits: bool = False


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue.

    draft_ids are verified in the pass over the prompt: the answer begins with those that the model itself chooses,
    then goes on with its own tokens up to max_new_tokens. With draft_logits, the logits that the drafts were drawn
    from under this request's own sampling, they are accepted by exact rejection sampling, without by comparing tokens;
    draft_acceptance_threshold replaces the random number of the former and makes it inexact.

    end_id ends the answer and is part of it; until min_new_tokens are out it is never chosen. A stop word ends the
    answer behind itself; a bad word is never completed.

    K drafts, V vocab_size.
        draft_logits    [K, V] float32
        embedding_bias  [V] float32, added to the logits
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    end_id: int | None = None
    draft_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    draft_logits: FloatArray | None = field(default=None, compare=False)
    draft_acceptance_threshold: float | None = None
    embedding_bias: FloatArray | None = field(default=None, compare=False)
    stop_words: tuple[tuple[int, ...], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    returns: Returns = field(default_factory=Returns)
    beam: BeamRules | None = None

    def sequences(self, count: int) -> tuple["GenerationRequest", ...]:
        """The requests of several return sequences, each with a seed of its own; the first is this very request."""
        others = (
            replace(
                self,
                request_id=f"{self.request_id}-{index}",
                sampling=replace(self.sampling, seed=derived_seed(self.sampling.seed, index)),
            )
            for index in range(1, count)
        )
        return (self, *others)


@dataclass(frozen=True)
class BlockUse:
    """Cache blocks of one request so far: taken for it, and found with their content."""

    num_new: int
    num_reused: int


NO_BLOCKS = BlockUse(0, 0)


@dataclass(frozen=True)
class StepOutput:
    """What one step did for one request.

    token_ids are the tokens of this step alone. finish_reason is set exactly when finished is. acceptance is set on
    a step that verified a draft. num_reused_tokens of the num_prompt_tokens came from an earlier request's cache.
    blocks says what the request has taken and found of the cache, error why it ended with the reason "error". What its
    `returns` asks for is of this step too.

    V vocab_size.
        log_probs          one for each token
        generation_logits  [tokens, V] float32
        context_logits     [prompt tokens of this step, V] float32
        beams              the finished ones, best first, where the request asked for them
    """

    request_id: str
    token_ids: tuple[int, ...]
    finished: bool
    finish_reason: FinishReason | None
    num_prompt_tokens: int
    num_reused_tokens: int
    acceptance: Acceptance | None = None
    error: TrtkitError | None = None
    log_probs: tuple[float, ...] = ()
    generation_logits: FloatArray | None = field(default=None, compare=False)
    context_logits: FloatArray | None = field(default=None, compare=False)
    beams: tuple[Beam, ...] = ()
    blocks: BlockUse = NO_BLOCKS
