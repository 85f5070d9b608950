"""Completions of an OpenAI-compatible server (vLLM, trtllm-serve, ...) over HTTP; standard library only.

Token ids are no part of that protocol. Servers that know `return_token_ids` or `return_tokens_as_token_ids` are asked
for them; a server that refuses these keys is asked again without. One that is busy is asked again when it says so.
"""

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from trtkit.client.completion_part import CompletionPart, as_promised, parsed, part_of
from trtkit.client.request import CompletionRequest
from trtkit.errors import RequestError, ServerError

_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": 1}
_EVENT = b"data:"
_END = b"[DONE]"
_REFUSES_KEYS = (400, 422)  # how servers answer a body with keys that they do not know
_BUSY = (429, 503)
_MOST_PAUSES = 5
_LONGEST_PAUSE_S = 30.0


class KeysRefusedError(RequestError):
    """The server refuses the body as it is written; with fewer keys it may take it."""


class OpenAiClient:
    """url is the base, http(s)://host:port/v1. Any number of threads may ask; each answer has its own connection."""

    def __init__(self, url: str, *, model: str | None = None, timeout_s: float = 600.0) -> None:
        self._parts = urlsplit(url)
        self._timeout_s = timeout_s
        self._model = model
        self._knows_ids = True
        self._choosing = threading.Lock()
        self._under_way: dict[http.client.HTTPConnection, socket.socket] = {}
        self._is_closed = threading.Event()

    def close(self) -> None:
        """Give up what is under way: threads that wait for an answer get a ServerError."""
        self._is_closed.set()
        for used in tuple(self._under_way.values()):
            with contextlib.suppress(OSError):
                used.shutdown(socket.SHUT_RDWR)

    @property
    def model(self) -> str:
        """The model asked for; the server's first one unless it was given. Raises ServerError when it has none."""
        with self._choosing:
            if self._model is None:
                models = self._json("GET", "models").get("data") or []
                if not models:
                    raise ServerError(f"{self._parts.netloc} serves no model", "load one", code="OPENAI")
                with as_promised(models, self._parts.netloc):
                    self._model = str(models[0]["id"])
            return self._model

    def complete(self, request: CompletionRequest) -> Iterator[CompletionPart]:
        """The pieces of one answer; one when it is not streamed.

        Raises RequestError when the server refuses the request, ServerError when it fails, stays busy, or is not there.
        """
        body, asks_ids = self._body(request), self._knows_ids  # other threads may learn meanwhile that it does not
        try:
            yield from self._complete(body | (_IDS if asks_ids else {}), stream=request.stream)
        except KeysRefusedError:
            if not asks_ids:
                raise
            yield from self._complete(body, stream=request.stream)
            self._knows_ids = False

    def _body(self, request: CompletionRequest) -> dict[str, Any]:
        seed = {} if request.seed is None else {"seed": request.seed}
        usage = {"stream_options": {"include_usage": True}} if request.stream else {}
        return {
            "model": self.model,
            "prompt": request.text,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "stream": request.stream,
            **seed,
            **usage,
        }

    def _complete(self, body: dict[str, Any], *, stream: bool) -> Iterator[CompletionPart]:
        source = self._parts.netloc
        if not stream:
            yield part_of(self._json("POST", "completions", body), source)
            return
        with self._connected() as connection:
            for data in self._events(self._send(connection, "POST", "completions", body)):
                yield part_of(parsed(data, source), source)

    def _events(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """The data of each event. Raises ServerError when the server goes away before it said that this is all."""
        with response, self._not_gone():
            for line in response:
                data = line.removeprefix(_EVENT).strip()
                if line.startswith(_EVENT) and data == _END:
                    return
                if line.startswith(_EVENT) and data:
                    yield data
        raise ServerError(
            f"{self._parts.netloc} ended an answer before its last part", "see the server's log", code="OPENAI"
        )

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        with self._connected() as connection:
            with self._send(connection, method, path, body) as response, self._not_gone():
                data = response.read()
            return parsed(data, self._parts.netloc)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[http.client.HTTPConnection]:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.netloc, timeout=self._timeout_s)
        try:
            yield connection
        finally:
            self._under_way.pop(connection, None)
            connection.close()

    @contextlib.contextmanager
    def _not_gone(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(
                f"{self._parts.netloc} went away in the middle of an answer: {error}", "see its log", code="OPENAI"
            ) from None

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: dict[str, Any] | None
    ) -> http.client.HTTPResponse:
        """The response of a server that answers with 200; one that is busy and says for how long is asked again."""
        response = self._response(connection, method, path, body)
        for _ in range(_MOST_PAUSES):
            pause_s = _pause_s(response)
            if pause_s is None or self._is_closed.wait(pause_s):
                break
            response.close()
            connection.close()
            response = self._response(connection, method, path, body)
        if response.status == 200:
            return response
        with response, self._not_gone():
            said = response.read(500).decode("utf-8", "replace")
        raise _refusal(self._parts.netloc, response.status, said)

    def _response(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: dict[str, Any] | None
    ) -> http.client.HTTPResponse:
        text = None if body is None else json.dumps(body)
        try:
            url = f"{self._parts.path.rstrip('/')}/{path}"
            connection.connect()
            self._under_way[connection] = connection.sock
            connection.request(method, url, text, {"Content-Type": "application/json"})
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(
                f"no server answers at {self._parts.netloc}: {error}", "start it, or give its URL", code="OPENAI"
            ) from None


def _pause_s(response: http.client.HTTPResponse) -> float | None:
    """How long a busy server asks to wait; None for any other answer, and for what is too long or is a date."""
    said = response.headers.get("Retry-After", "")
    if response.status not in _BUSY or not said.strip().isdecimal():
        return None
    pause_s = float(said)
    return pause_s if pause_s <= _LONGEST_PAUSE_S else None


def _refusal(source: str, status: int, said: str) -> RequestError | ServerError:
    """The error of a status other than 200."""
    message = f"{source} answers {status}: {said}"
    if status in _BUSY:
        return ServerError(f"{source} is busy and answers {status}: {said}", "ask again later", code="OPENAI")
    if status in _REFUSES_KEYS:
        return KeysRefusedError(message, "see what the server says", code="OPENAI")
    if 400 <= status < 500 and status != http.client.REQUEST_TIMEOUT:
        return RequestError(message, "see what the server says", code="OPENAI")
    return ServerError(message, "see the server's log", code="OPENAI")
