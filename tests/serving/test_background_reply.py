"""Responses that another thread sends: in order, and none left behind."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from trtkit.errors import RequestError, TrtkitError
from trtkit.serving.background_reply import BackgroundReply
from trtkit.serving.tensor import Outputs


class SlowReply:
    """Takes a response when it is allowed to, and notes what it was given."""

    def __init__(self) -> None:
        self.allowed = threading.Event()
        self.taken: list[tuple[int, bool] | str] = []
        self.problem: Exception | None = None

    def send(self, outputs: Outputs, *, final: bool) -> None:
        assert self.allowed.wait(10)
        if self.problem is not None:
            raise self.problem
        self.taken.append((int(outputs["number"]), final))

    def fail(self, error: TrtkitError, *, final: bool = True) -> None:
        self.taken.append("failed")

    def is_cancelled(self) -> bool:
        return bool(self.taken)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def numbered(number: int) -> Outputs:
    return {"number": np.array(number)}


def test_the_sender_of_a_response_need_not_wait_for_it(executor: ThreadPoolExecutor) -> None:
    inner = SlowReply()
    BackgroundReply(inner, executor).send(numbered(1), final=False)
    assert inner.taken == []
    inner.allowed.set()


def test_responses_leave_in_order_and_the_last_one_has_left_on_return(executor: ThreadPoolExecutor) -> None:
    inner = SlowReply()
    inner.allowed.set()
    reply = BackgroundReply(inner, executor)
    for number in range(200):
        reply.send(numbered(number), final=number == 199)
    assert inner.taken == [(number, number == 199) for number in range(200)]


def test_an_error_comes_after_what_was_sent_before_it(executor: ThreadPoolExecutor) -> None:
    inner = SlowReply()
    reply = BackgroundReply(inner, executor)
    reply.send(numbered(1), final=False)
    threading.Timer(0.05, inner.allowed.set).start()
    reply.fail(RequestError("no", "mend it"))
    assert inner.taken == [(1, False), "failed"]


def test_what_sending_raised_is_raised_to_the_answer(executor: ThreadPoolExecutor) -> None:
    inner = SlowReply()
    inner.problem = ValueError("gone")
    inner.allowed.set()
    reply = BackgroundReply(inner, executor)
    reply.send(numbered(1), final=False)
    with pytest.raises(ValueError, match="gone"):
        reply.send(numbered(2), final=False)


def test_a_cancellation_is_asked_for_when_nothing_is_being_sent(executor: ThreadPoolExecutor) -> None:
    inner = SlowReply()
    reply = BackgroundReply(inner, executor)
    reply.send(numbered(1), final=False)
    threading.Timer(0.05, inner.allowed.set).start()
    assert reply.is_cancelled()
