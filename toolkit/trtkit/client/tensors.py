"""GenerateRequest to a KServe message, and KServe outputs to Chunk, by the contract. Knows no connection."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from trtkit.client.request import Chunk, Figures, FinishReason, GenerateRequest
from trtkit.errors import RequestError, TrtkitError
from trtkit.serving.contract import CHAT_PARAMETER, bls_contract
from trtkit.serving.kserve import request_message, text_of, tokens_of, value_of
from trtkit.serving.tensor import NUMPY_DTYPE, Outputs

_BLS = bls_contract()
_NUMBER = (int, float, np.integer, np.floating)
_LONGEST_DEADLINE_S = 365 * 24 * 3600  # longer times overflow in gRPC and sockets
_FIGURES = {
    "num_prompt_tokens": "num_input_tokens",
    "num_output_tokens": "num_output_tokens",
    "num_target_passes": "num_target_passes",
    "num_draft_tokens": "total_draft_tokens",
    "num_accepted_tokens": "total_accepted_draft_tokens",
    "acceptance_rate": "acceptance_rate",
    "num_evicted_tokens": "num_evicted_tokens",
}


def message_of(request: GenerateRequest) -> Any:
    """The ModelInferRequest to the BLS model; what is None is left to the server."""
    message = request_message(_BLS, values_of(request))
    if request.is_chat:
        message.parameters[CHAT_PARAMETER].bool_param = True
    return message


def settled(request: GenerateRequest, sends_pieces: Callable[[], bool]) -> GenerateRequest:
    """The request with its `stream` decided; the server is asked only where that is left to it.

    Where it does not answer, the request itself will find out, and say so while it is read.
    """
    if request.stream is not None:
        return request
    with contextlib.suppress(TrtkitError):
        return replace(request, stream=sends_pieces())
    return replace(request, stream=True)


def values_of(request: GenerateRequest) -> dict[str, Any]:
    """The inputs by name; None for those that are left out. Raises RequestError for what no tensor can carry."""
    check_deadline(request.deadline_s)
    if isinstance(request.stop_words, str) or not isinstance(request.stop_words, Iterable):
        raise _refusal(f"stop_words must be several texts, got {request.stop_words!r:.80}", "send a tuple")
    values = _chosen_values(request)
    return {name: _checked(name, value) for name, value in values.items()}


def check_deadline(deadline_s: float | None) -> None:
    """Raise RequestError for what is no time that a transport could wait for."""
    if deadline_s is not None and not (isinstance(deadline_s, _NUMBER) and 0 < deadline_s <= _LONGEST_DEADLINE_S):
        raise _refusal(f"deadline_s must be above 0 and at most a year, got {deadline_s!r}", "send a number of seconds")


def _checked(name: str, value: Any) -> Any:
    """The value as its tensor's type has it; another one would arrive as something else, or fail on the way."""
    tensor = _BLS.input(name)
    dtype = tensor.dtype
    if value is None and tensor.optional:
        return None
    if dtype == "STRING":
        for text in value if isinstance(value, list) else [value]:
            _check_text(name, text)
        return value
    if dtype == "BOOL":
        return bool(value)
    is_whole = dtype != "FP32"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer) if is_whole else _NUMBER):
        raise _refusal(f"input {name} must be a {'whole ' * is_whole}number, got {value!r}", "send one")
    return _within(name, int(value), np.iinfo(NUMPY_DTYPE[dtype])) if is_whole else float(value)


def _check_text(name: str, text: Any) -> None:
    if not isinstance(text, str):
        raise _refusal(f"input {name} must be text, got {text!r:.80}", "send a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _refusal(
            f"the text is not UTF-8: {error.reason} at character {error.start}", "send text in UTF-8"
        ) from None


def _within(name: str, value: int, width: Any) -> int:
    if not width.min <= value <= width.max:
        raise _refusal(
            f"input {name} must be between {width.min} and {width.max}, got {value}", "send a number in this range"
        )
    return value


def _refusal(cause: str, fix: str) -> RequestError:
    return RequestError(cause, fix, code="REQ-INPUT")


def _chosen_values(request: GenerateRequest) -> dict[str, Any]:
    samples = request.temperature != 0  # a negative one, or no number, is for the server to refuse
    return {
        "text_input": request.text,
        "max_tokens": request.max_tokens,
        "stream": request.stream,
        "exclude_input_in_output": True,
        "top_k": request.top_k if samples else 1,
        "temperature": request.temperature if samples else None,
        # Without top_p, TensorRT-LLM takes top_k 0 for greedy.
        "top_p": (1.0 if request.top_p is None else request.top_p) if samples else None,
        "seed": request.seed,
        "repetition_penalty": request.repetition_penalty,
        "stop_words": list(request.stop_words) or None,
        "num_draft_tokens": request.num_draft_tokens,
        "return_perf_metrics": request.wants_cache_figures or None,
    }


def chunk_of(outputs: Outputs, received_ns: int) -> Chunk:
    """One response as a Chunk. Raises ServerError when an output is missing, as from a foreign model."""
    return Chunk(
        text=text_of(outputs, "text_output"),
        token_ids=tokens_of(outputs),
        received_ns=received_ns,
        figures=_figures(outputs) if "finish_reason" in outputs else None,
    )


def _figures(outputs: Outputs) -> Figures:
    reused = "kv_cache_reused_blocks"
    return Figures(
        finish_reason=cast(FinishReason, text_of(outputs, "finish_reason")),
        draft_time_ms=value_of(outputs, "draft_time_ns") / 1e6,
        target_time_ms=value_of(outputs, "target_time_ns") / 1e6,
        num_reused_blocks=value_of(outputs, reused) if reused in outputs else None,
        **{field: value_of(outputs, name) for field, name in _FIGURES.items()},
    )
