"""What a caller asks of the engine and what comes back step by step. Knows no tensors, no scheduling."""

from dataclasses import dataclass, field
from typing import Literal

from trtkit.acceptance import Acceptance
from trtkit.errors import TrtkitError
from trtkit.reference.sampling.params import SamplingParams

FinishReason = Literal["length", "end_id", "cancelled", "error"]


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue.

    draft_ids are verified in the pass over the prompt: the answer begins with those that the model itself chooses,
    then goes on with its own tokens up to max_new_tokens. end_id ends the answer and is part of it; until
    min_new_tokens are out it is never chosen.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    end_id: int | None = None
    draft_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0


@dataclass(frozen=True)
class StepOutput:
    """What one step did for one request.

    token_ids are the tokens of this step alone. finish_reason is set exactly when finished is. acceptance is set on
    a step that verified a draft. num_reused_tokens of the num_prompt_tokens came from an earlier request's cache.
    error says why a request ended with the reason "error".
    """

    request_id: str
    token_ids: tuple[int, ...]
    finished: bool
    finish_reason: FinishReason | None
    num_prompt_tokens: int
    num_reused_tokens: int
    acceptance: Acceptance | None = None
    error: TrtkitError | None = None
