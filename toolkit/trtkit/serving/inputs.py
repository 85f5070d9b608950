"""The inputs of one request to a model, checked as they are read. Pure; knows arrays and a contract, no Triton."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trtkit.errors import RequestError
from trtkit.serving.tensor import Array, ModelContract


class Inputs:
    """The inputs of one request; rows are the batch axis, and every message names the field.

    Triton itself checks types and shapes, but only counts the required inputs. parameters are KServe's request
    parameters; over HTTP every key that is no input becomes one.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        contract: ModelContract,
        request_id: str,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._arrays = arrays
        self._contract = contract
        self._parameters = parameters or {}
        self.request_id = request_id
        for tensor in contract.inputs:
            if not tensor.optional and tensor.name not in self._arrays:
                raise RequestError(f"input {tensor.name} is missing", "send it with every request", code="REQ-INPUT")
        self.num_rows = min((array.shape[0] for array in self._arrays.values() if array.ndim), default=1)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def declares(self, name: str) -> bool:
        """Whether the model has this input at all; the names of some differ between releases."""
        return self._contract.declares(name)

    def timeout_s(self) -> float | None:
        """KServe's request parameter `timeout`, in microseconds there; None when it is left out or 0."""
        value = self._parameters.get("timeout", 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise RequestError(
                f"parameter timeout must be a number of microseconds, got {value!r}", "mend it", code="REQ-INPUT"
            )
        return value / 1e6 if value else None

    def flag(self, name: str) -> bool:
        """A request parameter that is true or false; false when it is left out."""
        value = self._parameters.get(name, False)
        if not isinstance(value, bool):
            raise RequestError(f"parameter {name} must be true or false, got {value!r}", "mend it", code="REQ-INPUT")
        return value

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

    def numbers(self, name: str, row: int) -> list[float]:
        """One row of an input with any number of numbers."""
        array = self.array(name, row)
        return [] if array is None else [float(value) for value in array.reshape(-1)]

    def weighted_texts(self, texts: str, weights: str, row: int) -> tuple[list[str], list[float]]:
        """One row of two inputs that belong together; in a batch, shorter rows are padded with empty strings.

        Raises RequestError when one holds more than the other.
        """
        words, numbers = self._texts(texts, row), self.numbers(weights, row)
        if len(words) != len(numbers):
            words = [word for word in words if word]
        if len(words) != len(numbers):
            raise RequestError(
                f"input {texts} holds {len(words)} words, {weights} {len(numbers)} numbers",
                "send one weight for each word",
                code="REQ-INPUT",
            )
        pairs = [(word, number) for word, number in zip(words, numbers, strict=True) if word]
        return [word for word, _ in pairs], [number for _, number in pairs]

    def texts(self, name: str, row: int) -> list[str]:
        """One row of an input with any number of strings; empty ones are padding."""
        return [text for text in self._texts(name, row) if text]

    def _texts(self, name: str, row: int) -> list[str]:
        array = self.array(name, row)
        return [] if array is None else [_decode(item, name) for item in array.reshape(-1)]


def _decode(value: bytes, name: str) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"input {name} is not UTF-8: {error.reason} at byte {error.start}", "send UTF-8", code="REQ-INPUT"
        ) from None
