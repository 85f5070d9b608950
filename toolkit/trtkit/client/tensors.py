"""GenerateRequest to a KServe message, and KServe outputs to Chunk, by the contract. Knows no connection."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from trtkit.client.request import Chunk, Figures, FinishReason, GenerateRequest
from trtkit.errors import RequestError, TrtkitError
from trtkit.serving.contract import CHAT_PARAMETER, bls_contract
from trtkit.serving.kserve import request_message, text_of, tokens_of, value_of
from trtkit.serving.tensor import NUMPY_DTYPE, Outputs

_BLS = bls_contract()
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
    values = _chosen_values(request)
    for name, value in values.items():
        if type(value) is int:
            _check_width(name, value)
    for text in (request.text, *request.stop_words):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text is not UTF-8: {error.reason} at character {error.start}",
                "send text in UTF-8",
                code="REQ-INPUT",
            ) from None
    return values


def _check_width(name: str, value: int) -> None:
    """An integer beyond its tensor's type would arrive as another number."""
    width = np.iinfo(NUMPY_DTYPE[_BLS.input(name).dtype])
    if not width.min <= value <= width.max:
        raise RequestError(
            f"input {name} must be between {width.min} and {width.max}, got {value}",
            "send a number in this range",
            code="REQ-INPUT",
        )


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
