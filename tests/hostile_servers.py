"""Servers that keep half of a protocol, for tests: KServe over gRPC, and OpenAI-compatible ones. No model is behind."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from trtkit.serving.contract import BLS

Output = tuple[str, str, tuple[int, ...], bytes]
FIGURES = {
    "num_input_tokens": 2,
    "num_output_tokens": 1,
    "num_target_passes": 1,
    "total_draft_tokens": 0,
    "total_accepted_draft_tokens": 0,
    "num_evicted_tokens": 0,
    "draft_time_ns": 0,
    "target_time_ns": 0,
    "acceptance_rate": 0,
}


def text(name: str, content: bytes) -> Output:
    return name, "BYTES", (1, 1), len(content).to_bytes(4, "little") + content


def final(**others: Output) -> list[Output]:
    """A last response as a BLS model makes it, with some outputs replaced by others."""
    outputs = {
        "text_output": text("text_output", b"a"),
        "output_ids": ("output_ids", "INT32", (1, 1), np.int32(5).tobytes()),
        "finish_reason": text("finish_reason", b"length"),
        **{name: (name, "INT64", (1, 1), np.int64(value).tobytes()) for name, value in FIGURES.items()},
    }
    return list((outputs | others).values())


class _Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, model: str, outputs: list[Output] | None, let_go: threading.Event) -> None:
        self._model, self._outputs, self._let_go = model, outputs, let_go

    def ModelReady(self, request: Any, _: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=request.name == self._model)

    def ModelConfig(self, _: Any, __: Any) -> Any:
        answer = service_pb2.ModelConfigResponse()
        answer.config.model_transaction_policy.decoupled = True
        return answer

    def ModelStreamInfer(self, requests: Iterator[Any], _: Any) -> Iterator[Any]:
        next(requests)
        if self._outputs is None:
            self._let_go.wait(60)
            return
        answer = service_pb2.ModelStreamInferResponse()
        answer.infer_response.model_name = self._model
        for name, dtype, shape, raw in self._outputs:
            answer.infer_response.outputs.add(name=name, datatype=dtype, shape=shape)
            answer.infer_response.raw_output_contents.append(raw)
        if self._outputs:
            yield answer


@contextmanager
def kserve_server(outputs: list[Output] | None, model: str = BLS, host: str = "127.0.0.1") -> Iterator[str]:
    """grpc://host:port of a server whose model answers every request with one response; None: with none, for ever."""
    let_go = threading.Event()
    server = grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Servicer(model, outputs, let_go), server)
    port = server.add_insecure_port(f"{host}:0")
    server.start()
    try:
        yield f"grpc://{host}:{port}"
    finally:
        let_go.set()
        server.stop(None).wait(10)


Answer = Callable[["_Handler"], None]


class _HostileServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Answer, models: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.models = answer, models
        self.let_go = threading.Event()

    def handle_error(self, *_: object) -> None:
        """Silence: connections are broken on purpose."""


class _Handler(BaseHTTPRequestHandler):
    server: _HostileServer

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": self.server.models}).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        self.server.answer(self)

    def event(self, document: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        self.wfile.flush()


def says(document: Any) -> Answer:
    """One event, and the end."""

    def answer(handler: _Handler) -> None:
        handler.event(document)
        handler.wfile.write(b"data: [DONE]\n\n")
        handler.close_connection = True

    return answer


def stops_short(handler: _Handler) -> None:
    """A part of an answer, and then a closed connection."""
    handler.event({"choices": [{"text": "a"}]})
    handler.close_connection = True


def is_killed(handler: _Handler) -> None:
    """A part of an answer, and then a reset connection."""
    handler.event({"choices": [{"text": "a"}]})
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def hangs(handler: _Handler) -> None:
    """No answer."""
    handler.server.let_go.wait(60)
    handler.close_connection = True


@contextmanager
def openai_server(answer: Answer, models: Any = ({"id": "m"},)) -> Iterator[str]:
    """http://host:port/v1 of a server that answers every request so."""
    with _HostileServer(answer, models) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.let_go.set()
            server.shutdown()
            thread.join()
