"""Generate from NVIDIA's `llmapi` model over gRPC: text in, text out. Knows that model's tensors, no others."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trtkit.client.request import CompletionRequest
from trtkit.errors import ServerError
from trtkit.serving.kserve import Connection, request_message
from trtkit.serving.tensor import Array, ModelContract, Tensor

MODEL = "tensorrt_llm"
# The inputs that are sent, a part of what the releases from 1.0 on have. The model has no batch axis.
_CONTRACT = ModelContract(
    MODEL,
    (
        Tensor("text_input", "STRING", (-1,)),
        Tensor("streaming", "BOOL", (1,), optional=True),
        Tensor("sampling_param_max_tokens", "INT32", (1,), optional=True),
        Tensor("sampling_param_temperature", "FP32", (1,), optional=True),
        Tensor("sampling_param_top_k", "INT32", (1,), optional=True),
        Tensor("sampling_param_seed", "UINT64", (1,), optional=True),
        Tensor("sampling_param_exclude_input_from_output", "BOOL", (1,), optional=True),
        Tensor("return_finish_reason", "BOOL", (1,), optional=True),
    ),
    (Tensor("text_output", "STRING", (-1,)), Tensor("finish_reason", "STRING", (-1,))),
)


@dataclass(frozen=True)
class LlmApiResponse:
    """The whole text up to now: a streamed response repeats what came before. finish_reason is None until the end."""

    text: str
    finish_reason: str | None


def llmapi_message(request: CompletionRequest) -> Any:
    """The ModelInferRequest."""
    samples = request.temperature != 0
    values = {
        "text_input": request.text,
        "streaming": request.stream,
        "sampling_param_max_tokens": request.max_tokens,
        "sampling_param_temperature": request.temperature if samples else None,
        "sampling_param_top_k": None if samples else 1,
        "sampling_param_seed": request.seed,
        "sampling_param_exclude_input_from_output": True,
        "return_finish_reason": True,
    }
    message = request_message(_CONTRACT, values)
    for tensor in message.inputs:
        del tensor.shape[:1]
    return message


class LlmApiClient:
    """One connection; any number of threads may ask at the same time. address is host:port."""

    def __init__(self, address: str) -> None:
        self._connection = Connection(address)

    def close(self) -> None:
        """Give the connection up."""
        self._connection.close()

    def generate(self, request: CompletionRequest) -> Iterator[LlmApiResponse]:
        """The responses to one request. Raises what the model answers; leave the iterator to cancel."""
        for outputs in self._connection.stream(llmapi_message(request)):
            if "text_output" not in outputs:
                raise ServerError(
                    f"{MODEL} answers without text_output, so it is not the llmapi model",
                    "serve trtkit's BLS model beside it, or NVIDIA's llmapi model",
                    code="CLIENT-CONTRACT",
                )
            reason = outputs.get("finish_reason")
            said = None if reason is None else _text_of(reason)
            yield LlmApiResponse(_text_of(outputs["text_output"]), None if said in (None, "None") else said)


def _text_of(array: Array) -> str:
    """The single text of an output. Raises ServerError for anything else, as from another model of this name."""
    item: Any = array.reshape(-1)[0] if array.size else None
    try:
        return str(item.decode("utf-8"))
    except (AttributeError, UnicodeDecodeError):
        raise ServerError(
            f"{MODEL} answers {item!r} where a text should be", "serve NVIDIA's llmapi model", code="CLIENT-CONTRACT"
        ) from None
