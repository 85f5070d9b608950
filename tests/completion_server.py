"""A tiny OpenAI-compatible server that answers from transformers, for tests. Knows /v1/models and /v1/completions."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from trtkit.evaluate.oracle.oracle import Oracle

KNOWN = {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options", "seed"}
ID_KEYS = {"return_token_ids", "return_tokens_as_token_ids", "logprobs"}


class CompletionServer(ThreadingHTTPServer):
    """tells_ids: "token_ids" as vLLM writes them, "logprobs" as ids in log-probabilities, or "no", which refuses
    unknown keys as trtllm-serve does. prefix_ids are put before every prompt: a fault to be found."""

    daemon_threads = True

    def __init__(self, folder: Path, end_ids: tuple[int, ...], tells_ids: str, prefix_ids: tuple[int, ...]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.oracle = Oracle.load(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.end_ids = end_ids
        self.tells_ids = tells_ids
        self.prefix_ids = prefix_ids
        self.computing = threading.Lock()
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: CompletionServer

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        self._send_json({"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        allowed = KNOWN if self.server.tells_ids == "no" else KNOWN | ID_KEYS
        if unknown := body.keys() - allowed:
            self._send_json({"error": f"unknown {sorted(unknown)}"}, 400)
            return
        prompt_ids = [*self.server.prefix_ids, *self.server.tokenizer.encode(body["prompt"]).ids]
        with self.server.computing:
            answer = list(self.server.oracle.answer(prompt_ids, body["max_tokens"], self.server.end_ids))
        token_ids = [token for token, _ in answer]
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(token_ids)}
        if not body["stream"]:
            self._send_json({"choices": [self._choice(token_ids, self._text(token_ids))], "usage": usage})
            return
        self.send_response(200)
        self.end_headers()
        shown = ""
        for count in range(1, len(token_ids) + 1):
            text = self._text(token_ids[:count])
            if count < len(token_ids):
                text = text.rstrip("\ufffd")
            new, shown = text[len(shown) :], text if len(text) > len(shown) else shown
            self._event({"choices": [self._choice(token_ids[count - 1 : count], new)]})
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _text(self, token_ids: list[int]) -> str:
        return str(self.server.tokenizer.decode(token_ids))

    def _choice(self, token_ids: list[int], text: str) -> dict[str, Any]:
        choice: dict[str, Any] = {"text": text, "finish_reason": None}
        if self.server.tells_ids == "token_ids":
            choice["token_ids"] = token_ids
        elif self.server.tells_ids == "logprobs":
            choice["logprobs"] = {"tokens": [f"token_id:{token}" for token in token_ids]}
        return choice

    def _event(self, document: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        self.wfile.flush()

    def _send_json(self, document: dict[str, Any], status: int = 200) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())


@contextmanager
def completion_server(
    folder: Path, end_ids: tuple[int, ...], *, tells_ids: str = "no", prefix_ids: tuple[int, ...] = ()
) -> Iterator[CompletionServer]:
    with CompletionServer(folder, end_ids, tells_ids, prefix_ids) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
