"""Requests and responses of Triton's Python backend as arrays; the only importer of pb_utils. Knows no model."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from trtkit.errors import InputError, RequestError, TrtkitError
from trtkit.serving.error_text import error_from_text
from trtkit.serving.tensor import NUMPY_DTYPE, ModelContract

Array = NDArray[Any]
Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class ModelArguments:
    """What Triton tells a model at load: its name, its parameters, and the build directory it lies in."""

    name: str
    parameters: Mapping[str, str]
    decoupled: bool
    build: Path

    def parameter(self, key: str, default: str | None = None) -> str:
        """One parameter. An unfilled placeholder counts as missing; raises InputError when there is no default."""
        value = self.parameters.get(key)
        if value is not None and not value.startswith("${"):
            return value
        if default is None:
            raise InputError(
                f"parameter {key} is missing",
                "render the repository again with trtkit build",
                where=f"{self.name}/config.pbtxt",
            )
        return default

    def flag(self, key: str, *, default: bool) -> bool:
        """A parameter that says true or false, as NVIDIA's models spell them. Raises InputError for another word."""
        value = self.parameter(key, str(default)).strip().lower()
        if value not in ("true", "false", "1", "0"):
            raise InputError(
                f"{key} must be true or false, got {value!r}", "mend it", where=f"{self.name}/config.pbtxt"
            )
        return value in ("true", "1")

    def number(self, key: str, default: int | None = None) -> int:
        """A parameter that is a whole number. Raises InputError for anything else."""
        value = self.parameter(key, None if default is None else str(default))
        try:
            return int(value)
        except ValueError:
            raise InputError(
                f"{key} must be a number, got {value!r}", "mend it", where=f"{self.name}/config.pbtxt"
            ) from None

    def numbers(self, key: str) -> tuple[int, ...]:
        """A parameter that lists whole numbers, separated by commas; empty when there is none."""
        return tuple(int(part) for part in self.parameter(key, "").split(",") if part)

    def path(self, key: str) -> Path:
        """A parameter that names a folder; a relative one is meant from the build directory."""
        return self.build / self.parameter(key)


def read_arguments(args: Mapping[str, str]) -> ModelArguments:
    """The `args` of `initialize`. args["model_repository"] is this model's own folder inside the repository."""
    config = json.loads(args["model_config"])
    return ModelArguments(
        name=args["model_name"],
        parameters={key: value["string_value"] for key, value in config["parameters"].items()},
        decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        build=Path(args["model_repository"]).resolve().parents[1],
    )


class Inputs:
    """The inputs of one request; rows are the batch axis, and every message names the field.

    Triton itself checks types and shapes, but only counts the required inputs.
    """

    def __init__(self, request: Any, contract: ModelContract) -> None:
        self._arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        self._contract = contract
        self.request_id: str = request.request_id()
        for tensor in contract.inputs:
            if not tensor.optional and tensor.name not in self._arrays:
                raise RequestError(f"input {tensor.name} is missing", "send it with every request", code="REQ-INPUT")
        self.num_rows = min((array.shape[0] for array in self._arrays.values() if array.ndim), default=1)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def declares(self, name: str) -> bool:
        """Whether the model has this input at all; the names of some differ between releases."""
        return any(tensor.name == name for tensor in self._contract.inputs)

    def array(self, name: str, row: int) -> Array | None:
        """One row of an input, copied out of shared memory, or None when the request leaves it out."""
        self._contract.input(name)  # a KeyError here is a mistake of ours: a name that the contract does not have
        whole = self._arrays.get(name)
        return None if whole is None else np.array(whole[row])

    def any_set(self, name: str) -> bool:
        """Whether an input that is there holds anything but zeros, false and empty strings."""
        return bool(np.any(self._arrays[name]))

    def value(self, name: str, row: int) -> Any:
        """One row of an input that holds a single value, as a Python value; None when it is left out."""
        array = self.array(name, row)
        if array is None:
            return None
        if array.size != 1:
            raise RequestError(f"input {name} must hold one value, got {array.size}", "send one", code="REQ-INPUT")
        return array.reshape(-1)[0].item() if array.dtype != object else array.reshape(-1)[0]

    def text(self, name: str, row: int) -> str | None:
        """One row of a string input."""
        value = self.value(name, row)
        return None if value is None else _decode(value, name)

    def texts(self, name: str, row: int) -> list[str]:
        """One row of an input with any number of strings; empty ones are padding."""
        array = self.array(name, row)
        return [] if array is None else [text for item in array.reshape(-1) if (text := _decode(item, name))]


class Sender:
    """The way back to the caller: any number of responses from a decoupled model, exactly one from another."""

    def __init__(self, request: Any, contract: ModelContract) -> None:
        self._sender = request.get_response_sender()
        self._contract = contract

    def send(self, outputs: Outputs, *, final: bool) -> None:
        """One response."""
        tensors = [
            pb_utils.Tensor(name, np.ascontiguousarray(array, NUMPY_DTYPE[self._contract.output(name).dtype]))
            for name, array in outputs.items()
        ]
        self._sender.send(pb_utils.InferenceResponse(tensors), flags=_final_flag(final))

    def finish_empty(self) -> None:
        """Answer with nothing; a model that is not decoupled must send a response even so."""
        self._sender.send(pb_utils.InferenceResponse([]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def fail(self, error: TrtkitError) -> None:
        """End the request with an error that names cause and fix."""
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Whether the caller gave the request up."""
        return bool(self._sender.is_cancelled())


def answer(outputs: Outputs, contract: ModelContract) -> Any:
    """The response object of a model that answers in `execute`."""
    tensors = [
        pb_utils.Tensor(name, np.ascontiguousarray(array, NUMPY_DTYPE[contract.output(name).dtype]))
        for name, array in outputs.items()
    ]
    return pb_utils.InferenceResponse(tensors)


def refuse(error: TrtkitError) -> Any:
    """The response object that says why a request failed."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))


def ask_model(
    contract: ModelContract, inputs: Outputs, wanted: Sequence[str], request_id: str, *, decoupled: bool
) -> Iterator[dict[str, Array]]:
    """Call another model of this server; yields one dict per response. Raises the model's own error.

    Closed early, the iterator still reads to the end: left as it is, it makes the calling model impossible to unload.
    """
    request = pb_utils.InferenceRequest(
        model_name=contract.name,
        request_id=request_id,
        requested_output_names=list(wanted),
        inputs=[pb_utils.Tensor(name, np.ascontiguousarray(array)) for name, array in inputs.items()],
    )
    failure = None
    try:
        responses = iter(request.exec(decoupled=True) if decoupled else [request.exec()])
    except pb_utils.TritonModelException as error:
        raise error_from_text(str(error), source=contract.name) from None
    try:
        for response in responses:
            if response.has_error():
                failure = failure or response.error().message()
            elif response.output_tensors():
                yield {tensor.name(): np.array(tensor.as_numpy()) for tensor in response.output_tensors()}
    finally:
        for _ in responses:
            pass
    if failure is not None:
        raise error_from_text(failure, source=contract.name)


def _final_flag(final: bool) -> int:
    return int(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL) if final else 0


def _decode(value: bytes, name: str) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"input {name} is not UTF-8: {error.reason} at byte {error.start}", "send UTF-8") from None
