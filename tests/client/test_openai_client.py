"""What a client makes of a server that refuses: the keys for token ids, or every request because it is busy."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from trtkit.client.openai_client import OpenAiClient
from trtkit.client.request import CompletionRequest
from trtkit.errors import RequestError, ServerError


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


class BusyServer(ThreadingHTTPServer):
    """Answers with the statuses in turn, the last one again and again; a 200 tells token ids where they are asked for.
    Says `retry_after` with every refusal."""

    daemon_threads = True

    def __init__(self, statuses: tuple[int, ...], retry_after: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _BusyHandler)
        self.statuses, self.retry_after = statuses, retry_after
        self.num_asked = 0


class _BusyHandler(BaseHTTPRequestHandler):
    server: BusyServer

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.statuses[min(self.server.num_asked, len(self.server.statuses) - 1)]
        self.server.num_asked += 1
        self.send_response(status)
        if status != 200 and self.server.retry_after is not None:
            self.send_header("Retry-After", self.server.retry_after)
        self.end_headers()
        ids = {"token_ids": [7]} if "return_token_ids" in body else {}
        said = {"choices": [{"text": "done", **ids}]} if status == 200 else {"message": "too many requests"}
        self.wfile.write(json.dumps(said).encode())


@pytest.fixture
def busy(request: pytest.FixtureRequest) -> Iterator[BusyServer]:
    with BusyServer(*request.param) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: BusyServer) -> list[tuple[int, ...] | None]:
    client = OpenAiClient(f"http://127.0.0.1:{server.server_port}/v1", model="m", timeout_s=30)
    return [part.token_ids for part in client.complete(CompletionRequest("a", 4))]


@pytest.mark.parametrize(
    "busy",
    [
        *(((429,), None), ((503,), None)),
        *(((429,), "3600"), ((429,), "Wed, 21 Oct 2026 07:28:00 GMT"), ((503,), "-1")),
    ],
    indirect=True,
    ids=str,
)
def test_a_server_that_is_busy_for_longer_than_one_waits_is_no_bad_request(busy: BusyServer) -> None:
    with pytest.raises(ServerError, match=r"is busy and answers (429|503): .*too many requests") as raised:
        ask(busy)
    assert raised.value.exit_code == 4
    assert busy.num_asked == 1


@pytest.mark.parametrize("busy", [((429, 200), "0"), ((503, 429, 200), "1")], indirect=True, ids=str)
def test_a_busy_server_is_asked_again_when_it_says_so_and_still_for_token_ids(busy: BusyServer) -> None:
    began = time.monotonic()
    assert ask(busy) == [(7,)]
    assert time.monotonic() - began >= float(busy.retry_after or 0) * (len(busy.statuses) - 1)


@pytest.mark.parametrize("busy", [((429,), "0")], indirect=True, ids=str)
def test_a_server_that_stays_busy_is_given_up(busy: BusyServer) -> None:
    with pytest.raises(ServerError, match="is busy"):
        ask(busy)
    assert busy.num_asked == 6


@pytest.mark.parametrize("busy", [((429, 200), "30")], indirect=True, ids=str)
def test_a_pause_ends_when_the_client_is_closed(busy: BusyServer) -> None:
    client = OpenAiClient(f"http://127.0.0.1:{busy.server_port}/v1", model="m")
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(lambda: list(client.complete(CompletionRequest("a", 4))))
        while not busy.num_asked:
            time.sleep(0.01)
        client.close()
        with pytest.raises(ServerError):
            asking.result(timeout=10)


@pytest.mark.parametrize("busy", [((401,),), ((404,),), ((400, 429),)], indirect=True, ids=str)
def test_only_a_body_that_is_refused_is_sent_again_without_the_keys_for_ids(busy: BusyServer) -> None:
    with pytest.raises(ServerError if 429 in busy.statuses else RequestError):
        ask(busy)
    assert busy.num_asked == len(busy.statuses)
