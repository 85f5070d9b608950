"""A KServe client that never saw trtkit: tritonclient's own stream, for tests. Knows names given to it, no contract."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

_DTYPES = {"INT32": np.int32, "BOOL": np.bool_, "FP32": np.float32, "UINT64": np.uint64, "BYTES": np.object_}
WAIT_S = 60


class KServeStream:
    """One gRPC stream; `ask` sends a request and returns the outputs of every response as lists."""

    def __init__(self, client: InferenceServerClient) -> None:
        self.client = client
        self._arrived: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: self._arrived.put((result, error)))

    def send(
        self,
        model: str,
        request_id: str = "",
        parameters: dict[str, Any] | None = None,
        timeout_us: int | None = None,
        **values: tuple[str, Any],
    ) -> None:
        """`values` are name=(dtype, nested list with the batch axis)."""
        inputs = []
        for name, (dtype, value) in values.items():
            array = np.array(value, dtype=_DTYPES[dtype])
            inputs.append(InferInput(name, list(array.shape), dtype))
            inputs[-1].set_data_from_numpy(array)
        self.client.async_stream_infer(
            model,
            inputs,
            request_id=request_id,
            enable_empty_final_response=True,
            parameters=parameters,
            timeout=timeout_us,
        )

    def responses(self, wait_s: float = WAIT_S) -> Iterator[dict[str, Any]]:
        """Outputs of each response until the final one. Raises what Triton answered."""
        final = False
        while not final:
            result, error = self._arrived.get(timeout=wait_s)
            if error is not None:
                raise error
            response = result.get_response()
            final = response.parameters["triton_final_response"].bool_param
            if response.outputs:
                yield {output.name: result.as_numpy(output.name).tolist() for output in response.outputs}

    def ask(self, model: str, request_id: str = "", **values: tuple[str, Any]) -> list[dict[str, Any]]:
        self.send(model, request_id, **values)
        return list(self.responses())


@contextmanager
def kserve_stream(address: str) -> Iterator[KServeStream]:
    client = InferenceServerClient(address)
    stream = KServeStream(client)
    try:
        yield stream
    finally:
        client.stop_stream(cancel_requests=True)
        client.close()
