"""Refuses requests that can never be answered. Knows limits, no tensors and no state."""

from dataclasses import dataclass

from trtkit.errors import RequestError
from trtkit.reference.request import GenerationRequest


@dataclass(frozen=True)
class Limits:
    """max_seq_len bounds prompt and answer together."""

    vocab_size: int
    max_seq_len: int


def check_request(request: GenerationRequest, limits: Limits) -> None:
    """Raise RequestError: REQ-EMPTY, REQ-VOCAB, REQ-LENGTH, REQ-TOKENS or REQ-SAMPLING."""
    if not request.prompt_ids:
        raise RequestError("the prompt is empty", "send at least one token", code="REQ-EMPTY")
    _check_ids("prompt", request.prompt_ids, limits.vocab_size)
    _check_ids("draft", request.draft_ids, limits.vocab_size)
    if request.max_new_tokens < 1 or not 0 <= request.min_new_tokens <= request.max_new_tokens:
        raise RequestError(
            f"max_new_tokens is {request.max_new_tokens}, min_new_tokens {request.min_new_tokens}",
            "ask for at least one token, and for no more at least than at most",
            code="REQ-TOKENS",
        )
    num_tokens = len(request.prompt_ids) + request.max_new_tokens
    if num_tokens > limits.max_seq_len:
        raise RequestError(
            f"{len(request.prompt_ids)} prompt tokens and {request.max_new_tokens} new ones exceed max_seq_len"
            f" {limits.max_seq_len} by {num_tokens - limits.max_seq_len}",
            "shorten the prompt, ask for fewer tokens, or build with a larger max_seq_len",
            code="REQ-LENGTH",
        )
    request.sampling.check()


def _check_ids(what: str, token_ids: tuple[int, ...], vocab_size: int) -> None:
    """min and max, not a loop: long prompts pass here in every request of a draft-target loop."""
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise RequestError(
            f"{what} token {wrong} is outside the vocabulary of {vocab_size} tokens",
            "use the tokenizer that belongs to this model",
            code="REQ-VOCAB",
        )
