"""What a client learns of a server that refuses the keys for token ids, while several threads ask."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from trtkit.client.openai_client import OpenAiClient
from trtkit.client.request import CompletionRequest


class RefusingServer(ThreadingHTTPServer):
    """Answers "done", and refuses every request for ids: the one for the prompt "slow" only when it is let go."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.has_slow = threading.Event()
        self.let_go = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: RefusingServer

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asks_ids = "return_token_ids" in body
        if asks_ids and body["prompt"] == "slow":
            self.server.has_slow.set()
            assert self.server.let_go.wait(30)
        self.send_response(400 if asks_ids else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"choices": [{"text": "done", "finish_reason": "stop"}]}).encode())


@pytest.fixture
def server() -> Iterator[RefusingServer]:
    with RefusingServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.let_go.set()
        server.shutdown()
        thread.join()


def test_a_request_refused_after_another_learnt_that_there_are_no_ids_is_asked_again(server: RefusingServer) -> None:
    client = OpenAiClient(f"http://127.0.0.1:{server.server_port}/v1", model="m", timeout_s=30)

    def answer(prompt: str) -> list[str]:
        return [part.text for part in client.complete(CompletionRequest(prompt, 4))]

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(answer, "slow")
        assert server.has_slow.wait(30)
        assert answer("quick") == ["done"]
        server.let_go.set()
        assert slow.result(timeout=30) == ["done"]
