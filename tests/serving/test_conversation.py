"""Streams between answers: kept when they are clean, given up when they are not."""

from collections.abc import Iterator
from typing import Any

import pytest
from trtkit.serving.conversation import Conversations
from trtkit.serving.tensor import Outputs


class OneStream:
    """Answers each request with three empty responses, and is settled when the last one was taken."""

    def __init__(self) -> None:
        self.is_settled = True
        self.is_closed = False
        self.is_cancelled = False

    def ask(self, message: Any) -> Iterator[Outputs]:
        self.is_settled = False
        yield from ({}, {}, {})
        self.is_settled = True

    def cancel(self) -> None:
        self.is_cancelled = True

    def close(self) -> None:
        self.is_closed = True


class Streams:
    def __init__(self) -> None:
        self.opened: list[OneStream] = []

    def open_stream(self) -> OneStream:
        self.opened.append(OneStream())
        return self.opened[-1]


def test_the_next_answer_has_the_stream_of_the_one_before() -> None:
    streams = Streams()
    conversations = Conversations(streams)
    for _ in range(5):
        with conversations.borrow() as conversation:
            assert len(list(conversation.ask("a"))) == 3
    assert len(streams.opened) == 1


def test_answers_at_the_same_time_have_streams_of_their_own() -> None:
    streams = Streams()
    conversations = Conversations(streams)
    with conversations.borrow(), conversations.borrow():
        assert len(streams.opened) == 2


def test_a_stream_with_responses_left_on_it_is_given_up() -> None:
    streams = Streams()
    conversations = Conversations(streams)
    with conversations.borrow() as conversation:
        next(conversation.ask("a"))
    assert streams.opened[0].is_closed
    with conversations.borrow():
        assert len(streams.opened) == 2


def test_a_stream_is_given_up_by_an_answer_that_fails_in_the_middle_of_a_request() -> None:
    streams = Streams()
    with pytest.raises(ValueError, match="mine"), Conversations(streams).borrow() as conversation:
        for _ in conversation.ask("a"):
            raise ValueError("mine")
    assert streams.opened[0].is_closed


def test_a_cancelled_stream_is_given_up() -> None:
    streams = Streams()
    with Conversations(streams).borrow() as conversation:
        conversation.cancel()
    assert (streams.opened[0].is_cancelled, streams.opened[0].is_closed) == (True, True)


def test_cancelling_an_answer_that_is_over_leaves_the_next_one_alone() -> None:
    streams = Streams()
    conversations = Conversations(streams)
    with conversations.borrow() as first:
        pass
    with conversations.borrow():
        first.cancel()
    assert not streams.opened[0].is_cancelled


def test_idle_streams_are_few_and_end_with_the_model() -> None:
    streams = Streams()
    conversations = Conversations(streams)
    holds = [conversations.borrow() for _ in range(20)]
    for hold in holds:
        hold.__enter__()
    for hold in holds:
        hold.__exit__(None, None, None)
    assert sum(not stream.is_closed for stream in streams.opened) == 8
    conversations.close()
    assert all(stream.is_closed for stream in streams.opened)
