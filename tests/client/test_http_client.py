"""Events of generate_stream to arrays and chunks, as Triton's JSON writes them."""

import socket
import threading

import pytest
from trtkit.client.http_client import HttpClient, outputs_of
from trtkit.client.request import GenerateRequest
from trtkit.client.tensors import chunk_of
from trtkit.errors import ServerError

LAST = {
    "finish_reason": "length",
    **dict.fromkeys(("num_input_tokens", "num_output_tokens", "num_target_passes", "num_evicted_tokens"), 1),
    **dict.fromkeys(("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens"), 0),
    **dict.fromkeys(("draft_time_ns", "target_time_ns"), 5_000_000),
}


def test_a_single_token_comes_without_a_list_around_it() -> None:
    assert chunk_of(outputs_of({"text_output": " a", "output_ids": 7}), 0).token_ids == (7,)


def test_the_last_event_of_a_stream_has_an_empty_list_of_tokens() -> None:
    chunk = chunk_of(outputs_of({"text_output": "", "output_ids": [], **LAST}), 0)
    assert chunk.token_ids == ()
    assert chunk.figures is not None
    assert chunk.figures.draft_time_ms == 5


def test_tokens_that_are_no_numbers_are_another_models() -> None:
    with pytest.raises(ServerError, match="CLIENT-CONTRACT"):
        chunk_of(outputs_of({"text_output": "", "output_ids": [1.5]}), 0)


def test_a_server_that_goes_away_in_the_middle_of_an_answer_is_an_error() -> None:
    event = b'data: {"text_output": "a", "output_ids": 7}\n\n'
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def die_after_one_event() -> None:
            with listener.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(head + f"{len(event):x}\r\n".encode() + event + b"\r\n")

        server = threading.Thread(target=die_after_one_event)
        server.start()
        answer = HttpClient(f"127.0.0.1:{listener.getsockname()[1]}").generate(GenerateRequest("a", 4, stream=True))
        chunks = iter(answer)
        assert next(chunks).token_ids == (7,)
        with pytest.raises(ServerError):
            next(chunks)
        server.join()


def test_an_answer_that_was_cancelled_before_it_was_read_is_not_asked_for() -> None:
    answer = HttpClient("127.0.0.1:1").generate(GenerateRequest("a", 4, stream=True))  # nobody answers there
    answer.cancel()
    assert list(answer) == []
