"""Refuses requests that can never be answered. Knows limits, no tensors and no state."""

from dataclasses import dataclass

import numpy as np

from trtkit.errors import RequestError
from trtkit.reference.request import FloatArray, GenerationRequest


@dataclass(frozen=True)
class Limits:
    """max_seq_len bounds prompt and answer together."""

    vocab_size: int
    max_seq_len: int


def check_request(request: GenerationRequest, limits: Limits) -> None:
    """Raise RequestError REQ-EMPTY, -VOCAB, -LENGTH, -TOKENS, -SAMPLING, -BEAM, -WORDS or -ARRAY."""
    if len(request.prompt_ids) == 0:
        raise RequestError("the prompt is empty", "send at least one token", code="REQ-EMPTY")
    _check_ids("input_ids:", request.prompt_ids, limits.vocab_size)
    check_draft(request.draft_ids, request.draft_logits, limits)
    if request.end_id is not None:
        _check_ids("end_id:", (request.end_id,), limits.vocab_size)
    if {type(request.max_new_tokens), type(request.min_new_tokens)} != {int}:
        raise RequestError("max_new_tokens or min_new_tokens is no int", "send whole numbers", code="REQ-TOKENS")
    if request.max_new_tokens < 1 or not 0 <= request.min_new_tokens <= request.max_new_tokens:
        raise RequestError(
            f"max_new_tokens is {request.max_new_tokens}, min_new_tokens {request.min_new_tokens}",
            "ask for at least one token, and for no more at least than at most",
            code="REQ-TOKENS",
        )
    _check_length(request, limits.max_seq_len)
    request.sampling.check()
    if request.beam is not None:
        raise RequestError("this engine takes one sequence at a time", "use BeamEngine for beams", code="REQ-BEAM")
    for name, words in (("stop", request.stop_words), ("bad", request.bad_words)):
        _check_words(name, words, limits.vocab_size)
    _check_arrays(request, limits.vocab_size)


def check_draft(draft_ids: tuple[int, ...], draft_logits: FloatArray | None, limits: Limits) -> None:
    """Raise RequestError: REQ-VOCAB or REQ-ARRAY."""
    _check_ids("draft_input_ids:", draft_ids, limits.vocab_size)
    if draft_logits is not None:
        _check_array("draft_logits", draft_logits, (len(draft_ids), limits.vocab_size))


def _check_length(request: GenerationRequest, max_seq_len: int) -> None:
    num_tokens = len(request.prompt_ids) + request.max_new_tokens
    if num_tokens > max_seq_len:
        raise RequestError(
            f"{len(request.prompt_ids)} prompt tokens and {request.max_new_tokens} new ones exceed max_seq_len"
            f" {max_seq_len} by {num_tokens - max_seq_len}",
            "shorten the prompt, ask for fewer tokens, or build with a larger max_seq_len",
            code="REQ-LENGTH",
        )


def _check_ids(what: str, token_ids: tuple[int, ...], vocab_size: int) -> None:
    """min and max, not a loop: long prompts pass here in every request of a draft-target loop."""
    if not all(issubclass(kind, int | np.integer) for kind in set(map(type, token_ids))):
        raise RequestError(f"{what} a token is no integer", "send token ids, not text or floats", code="REQ-VOCAB")
    if len(token_ids) and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise RequestError(
            f"{what} token {wrong} is outside the vocabulary of {vocab_size} tokens",
            "use the tokenizer that belongs to this model",
            code="REQ-VOCAB",
        )


def _check_words(name: str, words: tuple[tuple[int, ...], ...], vocab_size: int) -> None:
    for word in words:
        if not word:
            raise RequestError(f"a {name} word holds no token", "leave it out", code="REQ-WORDS")
        _check_ids(f"{name} word", word, vocab_size)


def _check_arrays(request: GenerationRequest, vocab_size: int) -> None:
    threshold = request.draft_acceptance_threshold
    if threshold is not None and not 0 < threshold <= 1:
        raise RequestError(
            f"draft_acceptance_threshold is {threshold}",
            "send a number above 0 and at most 1, or leave it out: then acceptance is exact",
            code="REQ-SAMPLING",
        )
    if request.embedding_bias is not None:
        _check_array("embedding_bias", request.embedding_bias, (vocab_size,))


def _check_array(name: str, array: FloatArray, shape: tuple[int, ...]) -> None:
    """Minus infinity is a way to exclude a token; a row that excludes all of them is no distribution."""
    if not isinstance(array, np.ndarray):
        raise RequestError(f"{name} is a {type(array).__name__}", "send a NumPy array", code="REQ-ARRAY")
    if array.shape != shape:
        raise RequestError(
            f"{name} has the shape {list(array.shape)}, it must be {list(shape)}",
            "send one row of draft logits for each draft token, and a bias with one number for each token",
            code="REQ-ARRAY",
        )
    if array.dtype.kind not in "fiu" or not _fits_float32(array):
        raise RequestError(
            f"{name} holds a NaN, plus infinity, a row of nothing but minus infinity, or what is no number of float32",
            "send finite numbers; minus infinity excludes single tokens",
            code="REQ-ARRAY",
        )


def _fits_float32(array: FloatArray) -> bool:
    """Every row has a finite maximum, and nothing becomes infinite on the way to float32."""
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32, copy=False)
    is_kept = narrow is array or bool((np.isinf(narrow) == np.isinf(array)).all())
    return is_kept and (array.size == 0 or bool(np.isfinite(narrow.max(axis=-1)).all()))
