"""A real server under load and abuse: nothing lost or doubled, memory that does not grow. Minutes; run with -m slow."""

import threading
import time
from pathlib import Path

import pytest
from process_memory import memory_mib
from trtkit.client.completion import collect
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.server.triton_server import TritonServer

pytestmark = [pytest.mark.tritonserver, pytest.mark.slow]
NUM_STREAMS = 64
LOAD_S = 120
NUM_REQUESTS = 10_000


def request_of(number: int) -> GenerateRequest:
    return GenerateRequest(f"prompt {number % 16}", 24, num_draft_tokens=number % 5, deadline_s=120)


def answer(client: TritonClient, number: int) -> tuple[int, ...]:
    return collect(client.generate(request_of(number)), lambda _: None).token_ids


@pytest.fixture
def expected(client: TritonClient) -> dict[int, tuple[int, ...]]:
    return {prompt: answer(client, prompt) for prompt in range(16)}


def run_side_by_side(work: "list[threading.Thread]") -> None:
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()


@pytest.mark.timeout(900)
def test_64_streams_for_two_minutes_lose_and_double_nothing(
    client: TritonClient, expected: dict[int, tuple[int, ...]]
) -> None:
    ends_at = time.monotonic() + LOAD_S
    finished = [0] * NUM_STREAMS
    wrong: list[object] = []

    def keep_asking(stream: int) -> None:
        while time.monotonic() < ends_at:
            number = stream + finished[stream]
            tokens = answer(client, number)
            if tokens != expected[number % 16]:
                wrong.append((number, tokens))
            finished[stream] += 1

    run_side_by_side([threading.Thread(target=keep_asking, args=(stream,)) for stream in range(NUM_STREAMS)])
    assert wrong == []
    assert min(finished) > 0.5 * max(finished), f"unfair: {sorted(finished)}"


@pytest.mark.timeout(1800)
def test_memory_stays_flat_over_10000_requests(
    server: TritonServer, client: TritonClient, expected: dict[int, tuple[int, ...]]
) -> None:
    numbers = iter(range(NUM_REQUESTS))
    taking = threading.Lock()
    wrong: list[object] = []
    warm: dict[str, float] = {}

    def keep_asking() -> None:
        while True:
            with taking:
                number = next(numbers, None)
                if number == NUM_REQUESTS // 5:
                    warm.update(memory_mib(server))
            if number is None:
                return
            if answer(client, number) != expected[number % 16]:
                wrong.append(number)

    run_side_by_side([threading.Thread(target=keep_asking) for _ in range(8)])
    after = memory_mib(server)
    assert wrong == []
    assert all(after[name] < warm[name] + 16 for name in warm), (warm, after)


def test_200_clients_that_disconnect_leave_a_healthy_server(
    server: TritonServer, expected: dict[int, tuple[int, ...]]
) -> None:
    pid = server.pid
    for number in range(200):
        with TritonClient(server.endpoints.grpc) as client:
            chunks = iter(client.generate(GenerateRequest("hello", 140, num_draft_tokens=number % 5)))
            for _ in range(number % 7):
                next(chunks)
    with TritonClient(server.endpoints.grpc) as client:
        assert answer(client, 3) == expected[3]
    assert server.pid == pid


def test_a_10_mb_prompt_is_refused_and_the_next_request_is_answered(
    client: TritonClient, expected: dict[int, tuple[int, ...]], build: Path
) -> None:
    with pytest.raises(Exception, match="REQ-LENGTH"):
        list(client.generate(GenerateRequest("word " * 2_000_000, 5)))
    assert answer(client, 3) == expected[3]
