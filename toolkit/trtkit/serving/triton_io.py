"""Requests and responses of Triton's Python backend as arrays; the only importer of pb_utils. Knows no model."""

import json
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtkit.errors import TrtkitError
from trtkit.serving.inputs import Inputs
from trtkit.serving.tensor import NUMPY_DTYPE, ModelContract, Outputs


def read_inputs(request: Any, contract: ModelContract) -> Inputs:
    """The inputs of a request. They are views of shared memory, which `Inputs` copies as it hands them out."""
    arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    parameters = json.loads(request.parameters() or "{}")
    # KServe's timeout is taken out of the parameters where the protocol names it, and left in them elsewhere.
    if request.timeout():
        parameters["timeout"] = request.timeout()
    return Inputs(arrays, contract, request.request_id(), parameters)


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

    def fail(self, error: TrtkitError, *, final: bool = True) -> None:
        """Answer with an error that names cause and fix."""
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        self._sender.send(response, flags=_final_flag(final))

    def is_cancelled(self) -> bool:
        """Whether the caller gave the request up."""
        return bool(self._sender.is_cancelled())


class Counters:
    """Counters beside Triton's own, with the model's name as their label.

    They are added to after an answer was sent, so that counting costs no latency. Call from threads at will: a metric
    keeps its message in itself and lets Python's lock go while it sends, hence the lock here.
    """

    def __init__(self, help_texts: Mapping[str, str], model: str) -> None:
        # A family that Python lets go takes its metric with it.
        self._families = {
            name: pb_utils.MetricFamily(name=name, description=text, kind=pb_utils.MetricFamily.COUNTER)
            for name, text in help_texts.items()
        }
        self._sending = threading.Lock()
        self._metrics = {name: family.Metric(labels={"model": model}) for name, family in self._families.items()}

    def close(self) -> None:
        """Let the metrics go while Triton still listens; a stub that does so at its very end crashes."""
        with self._sending:
            self._metrics.clear()
            self._families.clear()

    def add(self, counts: Mapping[str, float]) -> None:
        """Raise counters by these amounts."""
        with self._sending:
            for name, count in counts.items():
                if count and name in self._metrics:
                    self._metrics[name].increment(count)


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


def _final_flag(final: bool) -> int:
    return int(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL) if final else 0
