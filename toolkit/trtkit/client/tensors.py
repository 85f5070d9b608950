"""GenerateRequest to a KServe message, and KServe responses to Chunk, by the contract. Knows no connection."""

from typing import Any

import numpy as np
from tritonclient.grpc import InferResult, service_pb2

from trtkit.client.request import Chunk, Figures, GenerateRequest
from trtkit.errors import ServerError
from trtkit.serving.contract import bls_contract
from trtkit.serving.tensor import one_row

_BLS = bls_contract()
_FIGURES = {
    "num_prompt_tokens": "num_input_tokens",
    "num_output_tokens": "num_output_tokens",
    "num_target_passes": "num_target_passes",
    "num_draft_tokens": "total_draft_tokens",
    "num_accepted_tokens": "total_accepted_draft_tokens",
    "acceptance_rate": "acceptance_rate",
}


def message_of(request: GenerateRequest) -> Any:
    """The ModelInferRequest to the BLS model; what is None is left to the server."""
    samples = request.temperature > 0
    values: dict[str, Any] = {
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
    message = service_pb2.ModelInferRequest(model_name=_BLS.name)
    for name, value in values.items():
        if value is not None:
            _add_input(message, name, value)
    return message


def chunk_of(response: Any, received_ns: int) -> Chunk:
    """One ModelInferResponse as a Chunk. Raises ServerError when an output is missing, as from a foreign model."""
    result = InferResult(response)
    return Chunk(
        text=_value(result, "text_output").decode("utf-8"),
        token_ids=tuple(_array(result, "output_ids").reshape(-1).tolist()),
        received_ns=received_ns,
        figures=_figures(result) if result.as_numpy("finish_reason") is not None else None,
    )


def _add_input(message: Any, name: str, value: Any) -> None:
    tensor = _BLS.input(name)
    array = one_row(tensor, value)
    message.inputs.add(name=name, datatype=tensor.wire_dtype, shape=array.shape)
    message.raw_input_contents.append(_raw(array))


def _raw(array: "np.ndarray[Any, Any]") -> bytes:
    """KServe's bytes: numbers as they lie in memory (little-endian), strings behind their length in 4 bytes."""
    if array.dtype != np.object_:
        return array.tobytes()
    return b"".join(len(item).to_bytes(4, "little") + item for item in array.reshape(-1).tolist())


def _figures(result: InferResult) -> Figures:
    blocks = result.as_numpy("kv_cache_reused_blocks")
    return Figures(
        finish_reason=_value(result, "finish_reason").decode(),
        draft_time_ms=_value(result, "draft_time_ns") / 1e6,
        target_time_ms=_value(result, "target_time_ns") / 1e6,
        num_reused_blocks=None if blocks is None else int(blocks.reshape(-1)[0]),
        **{field: _value(result, name) for field, name in _FIGURES.items()},
    )


def _value(result: InferResult, name: str) -> Any:
    value = _array(result, name).reshape(-1)[0]
    return value if isinstance(value, bytes) else value.item()


def _array(result: InferResult, name: str) -> "np.ndarray[Any, Any]":
    array: np.ndarray[Any, Any] | None = result.as_numpy(name)
    if array is None:
        raise ServerError(
            f"the answer has no output {name}: this is not trtkit's {_BLS.name} model",
            "serve a repository that trtkit rendered",
            code="CLIENT-CONTRACT",
        )
    return array
