"""KServe v2 over gRPC: arrays to messages, and streams of responses back. Knows the protocol, no particular model."""

import queue
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from grpc.experimental import ChannelOptions
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc

from trtkit.errors import ServerError
from trtkit.serving.error_text import error_from_text
from trtkit.serving.grpc_errors import answer_error, question_error
from trtkit.serving.tensor import Array, ModelContract, Outputs, one_row

# Messages of any length, and 8 s for a peer to begin to speak gRPC, whatever gRPC calls that limit.
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.min_reconnect_backoff_ms", 8000),
)
# A stream of responses is read by the thread that iterates over it, with none in between.
_SINGLE_THREADED = ((ChannelOptions.SingleThreadedUnaryStream, 1),)
_FIX_CONTRACT = "serve a repository that trtkit rendered"


def request_message(contract: ModelContract, values: dict[str, Any], *, request_id: str = "") -> Any:
    """The ModelInferRequest of one row; values whose name maps to None are left to the server."""
    message = service_pb2.ModelInferRequest(model_name=contract.name, id=request_id)
    for name, value in values.items():
        if value is not None:
            tensor = contract.input(name)
            array = one_row(tensor, value)
            message.inputs.add(name=name, datatype=tensor.wire_dtype, shape=array.shape)
            message.raw_input_contents.append(_raw(array))
    return message


def outputs_of(response: Any) -> Outputs:
    """The outputs of a ModelInferResponse by name. Raises ServerError when its bytes are not the arrays it declares."""
    try:
        result = InferResult(response)
        return {output.name: result.as_numpy(output.name) for output in response.outputs}
    except (ValueError, TypeError, IndexError, struct.error) as error:
        raise ServerError(
            f"{response.model_name} sends what is no array: {error}", _FIX_CONTRACT, code="CLIENT-CONTRACT"
        ) from None


class Connection:
    """A channel to one server; any number of threads may use it at the same time."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._is_closed = False
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS + _SINGLE_THREADED)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        # The same method for callers with a single message, which then takes no thread to be sent.
        self._infer_once = self._channel.unary_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )

    def close(self) -> None:
        """Give the channel up; calls under way end with an error."""
        self._is_closed = True
        self._channel.close()

    def is_ready(self, model: str, timeout_s: float) -> bool:
        """Whether the server counts `model` as loaded. Raises ServerError when nobody answers."""
        self._refuse_closed()
        try:
            response = self._stub.ModelReady(service_pb2.ModelReadyRequest(name=model), timeout=timeout_s)
        except grpc.RpcError as error:
            raise question_error(error, self.address, timeout_s=timeout_s) from None
        return bool(response.ready)

    def sends_pieces(self, model: str, timeout_s: float) -> bool:
        """Whether `model` may answer with several responses. Raises ServerError when nobody says so."""
        self._refuse_closed()
        try:
            answer = self._stub.ModelConfig(service_pb2.ModelConfigRequest(name=model), timeout=timeout_s)
        except grpc.RpcError as error:
            raise question_error(error, self.address, timeout_s=timeout_s) from None
        return bool(answer.config.model_transaction_policy.decoupled)

    def open_stream(self) -> "RequestStream":
        """A stream that carries one request after another."""
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        return RequestStream(self._stub.ModelStreamInfer(iter(requests.get, None)), requests, self.address)

    def stream(self, message: Any, *, deadline_s: float | None = None) -> "ResponseStream":
        """Send one request to a model that may answer with several responses. Raises ServerError after `close`."""
        self._refuse_closed()
        call = self._infer_once(message, timeout=deadline_s)
        return ResponseStream(call, message.model_name, self.address, deadline_s)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise ServerError(
                f"the connection to {self.address} was closed", "ask before it is closed", code="CLIENT-CLOSED"
            )


class RequestStream:
    """One request after another, for callers that ask many short ones.

    Setting a stream up and down costs several times what a request on it does. is_settled: every response was read, so
    the next request will get its own.
    """

    def __init__(self, call: Any, requests: "queue.SimpleQueue[Any]", address: str) -> None:
        self._call = call
        self._requests = requests
        self._address = address
        self._is_cancelled = False
        self.is_settled = True

    def close(self) -> None:
        """Give the stream up, and the request under way with it."""
        self._requests.put(None)
        self._call.cancel()

    def ask(self, message: Any) -> Iterator[Outputs]:
        """Send one request at once; read its responses to the end before the next `ask`.

        The iterator raises the model's error. After `cancel` it ends without one.
        """
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        self.is_settled = False
        self._requests.put(message)
        return self._responses(message.model_name)

    def _responses(self, model: str) -> Iterator[Outputs]:
        try:
            for response in self._call:
                if response.error_message:
                    raise error_from_text(response.error_message, source=model)
                if response.infer_response.outputs:
                    yield outputs_of(response.infer_response)
                if response.infer_response.parameters["triton_final_response"].bool_param:
                    self.is_settled = True
                    return
        except grpc.RpcError as error:
            if not self._is_cancelled:
                raise answer_error(error, self._address, deadline_s=None) from None
            return
        raise ServerError(f"{model}: the stream ended early", "see the server's log", code="SERVER")

    def cancel(self) -> None:
        """Stop the request under way and end the stream; from any thread."""
        self._is_cancelled = True
        self._call.cancel()


class ResponseStream:
    """The responses to one request: an iterator that any thread may cancel.

    Raises while iterating: RequestError when the model refuses the request, ServerError when it fails, is not there,
    or a deadline passes. Cancelled, it ends without an error.
    """

    def __init__(self, call: Any, model: str, address: str, deadline_s: float | None) -> None:
        self._call = call
        self._model = model
        self._address = address
        self._deadline_s = deadline_s
        self.is_cancelled = False

    def __iter__(self) -> Iterator[Outputs]:
        try:
            for response in self._call:
                if response.error_message:
                    raise error_from_text(response.error_message, source=self._model)
                yield outputs_of(response.infer_response)
        except grpc.RpcError as error:
            if not self.is_cancelled:
                raise answer_error(error, self._address, deadline_s=self._deadline_s) from None
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """Tell the server to stop."""
        self.is_cancelled = True
        self._call.cancel()


def value_of(outputs: Outputs, name: str) -> Any:
    """The single value of an output. Raises ServerError when a foreign model left it out."""
    array = array_of(outputs, name)
    if not array.size:
        raise ServerError(f"the answer's {name} is empty", _FIX_CONTRACT, code="CLIENT-CONTRACT")
    value = array.reshape(-1)[0]
    return value if isinstance(value, bytes) else value.item()


def text_of(outputs: Outputs, name: str) -> str:
    """The single text of an output. Raises ServerError when a foreign model sends something else."""
    value = value_of(outputs, name)
    try:
        return str(value.decode("utf-8"))
    except (AttributeError, UnicodeDecodeError):
        raise ServerError(
            f"the answer's {name} is {value!r} and no text", _FIX_CONTRACT, code="CLIENT-CONTRACT"
        ) from None


def array_of(outputs: Outputs, name: str) -> Array:
    """An output. Raises ServerError when a foreign model left it out."""
    array = outputs.get(name)
    if array is None:
        raise ServerError(
            f"the answer has no output {name}: this is not a model that trtkit rendered",
            _FIX_CONTRACT,
            code="CLIENT-CONTRACT",
        )
    return array


def tokens_of(outputs: Outputs) -> tuple[int, ...]:
    """The token ids of a response of one row. Raises ServerError when a foreign model sends something else.

    An empty list has no type over HTTP.
    """
    array = array_of(outputs, "output_ids")
    if array.size and array.dtype.kind not in "iu":
        raise ServerError("the answer's output_ids are no whole numbers", _FIX_CONTRACT, code="CLIENT-CONTRACT")
    return tuple(array.reshape(-1).tolist())


def _raw(array: Array) -> bytes:
    """KServe's bytes: numbers as they lie in memory (little-endian), strings behind their length in 4 bytes."""
    if array.dtype != np.object_:
        return array.tobytes()
    return b"".join(len(item).to_bytes(4, "little") + item for item in array.reshape(-1).tolist())
