"""Completions of an OpenAI-compatible server (vLLM, trtllm-serve, ...) over HTTP; standard library only.

Token ids are no part of that protocol. Servers that know `return_token_ids` or `return_tokens_as_token_ids` are asked
for them; a server that refuses these keys is asked again without.
"""

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from trtkit.client.request import CompletionRequest
from trtkit.errors import RequestError, ServerError

_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": 1}
_ID_PREFIX = "token_id:"
_EVENT = b"data:"
_END = b"[DONE]"


@dataclass(frozen=True)
class CompletionPart:
    """A piece of an answer. token_ids is None where the server does not tell; counts come with the last piece."""

    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: str | None = None
    num_prompt_tokens: int | None = None


class OpenAiClient:
    """url is the base, http(s)://host:port/v1. Any number of threads may ask; each answer has its own connection."""

    def __init__(self, url: str, *, model: str | None = None, timeout_s: float = 600.0) -> None:
        self._parts = urlsplit(url)
        self._timeout_s = timeout_s
        self._model = model
        self._knows_ids = True
        self._choosing = threading.Lock()
        self._under_way: dict[http.client.HTTPConnection, socket.socket] = {}

    def close(self) -> None:
        """Give up what is under way: threads that wait for an answer get a ServerError."""
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
                with _as_promised(models, self._parts.netloc):
                    self._model = str(models[0]["id"])
            return self._model

    def complete(self, request: CompletionRequest) -> Iterator[CompletionPart]:
        """The pieces of one answer; one when it is not streamed.

        Raises RequestError when the server refuses the request, ServerError when it fails or is not there.
        """
        body, asks_ids = self._body(request), self._knows_ids  # other threads may learn meanwhile that it does not
        try:
            yield from self._complete(body | (_IDS if asks_ids else {}), stream=request.stream)
        except RequestError:
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
            yield _part(self._json("POST", "completions", body), source)
            return
        with self._connected() as connection:
            for data in self._events(self._send(connection, "POST", "completions", body)):
                yield _part(_parsed(data, source), source)

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
            return _parsed(data, self._parts.netloc)

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
        text = None if body is None else json.dumps(body)
        try:
            url = f"{self._parts.path.rstrip('/')}/{path}"
            connection.connect()
            self._under_way[connection] = connection.sock
            connection.request(method, url, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(
                f"no server answers at {self._parts.netloc}: {error}", "start it, or give its URL", code="OPENAI"
            ) from None
        if response.status == 200:
            return response
        with response, self._not_gone():
            said = response.read(500).decode("utf-8", "replace")
        message = f"{self._parts.netloc} answers {response.status}: {said}"
        if 400 <= response.status < 500:
            raise RequestError(message, "see what the server says", code="OPENAI")
        raise ServerError(message, "see the server's log", code="OPENAI")


def _parsed(data: bytes, source: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or "error" in document:
        said = data[:300].decode("utf-8", "replace")
        raise ServerError(f"{source} sends no completion: {said}", "see the server's log", code="OPENAI")
    return document


@contextlib.contextmanager
def _as_promised(document: object, source: str) -> Iterator[None]:
    """Raise ServerError where a document is read that is not built as the protocol says."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(
            f"{source} does not speak the protocol ({type(error).__name__} {error}): {str(document)[:300]}",
            "give the URL of an OpenAI-compatible server",
            code="OPENAI",
        ) from None


def _part(document: dict[str, Any], source: str) -> CompletionPart:
    with _as_promised(document, source):
        choices: list[dict[str, Any]] = document.get("choices") or [{}]
        choice = choices[0]
        text, count = choice.get("text") or "", (document.get("usage") or {}).get("prompt_tokens")
        if not isinstance(text, str) or not (count is None or type(count) is int):
            raise TypeError("text is a string, and prompt_tokens a number")
        return CompletionPart(
            text=text,
            token_ids=_token_ids(choice) if choice else (),
            finish_reason=choice.get("finish_reason"),
            num_prompt_tokens=count,
        )


def _token_ids(choice: dict[str, Any]) -> tuple[int, ...] | None:
    """From `token_ids`, or from log-probabilities whose tokens are written as ids; None where neither is there."""
    if isinstance(choice.get("token_ids"), list):
        if not all(type(token) is int for token in choice["token_ids"]):
            raise TypeError("token ids are whole numbers")
        return tuple(choice["token_ids"])
    tokens = (choice.get("logprobs") or {}).get("tokens")
    if tokens and all(isinstance(token, str) and token.startswith(_ID_PREFIX) for token in tokens):
        return tuple(int(token.removeprefix(_ID_PREFIX)) for token in tokens)
    return () if not choice.get("text") else None
