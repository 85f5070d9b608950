"""The time that a request may take: nothing is stopped too early, and a body that hangs is stopped."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from trtkit.errors import RequestError, ServerError, TrtkitError
from trtkit.serving.contract import bls_contract
from trtkit.serving.deadline import Deadline
from trtkit.serving.inputs import Inputs


def inputs(**parameters: object) -> Inputs:
    needed = [tensor.name for tensor in bls_contract().inputs if not tensor.optional]
    return Inputs({name: np.zeros((1, 1)) for name in needed}, bls_contract(), "", parameters)


def test_a_body_that_hangs_is_stopped_and_the_answer_is_an_error() -> None:
    stopped = threading.Event()
    deadline = Deadline(0.05)
    with deadline.enforced(stopped.set):
        assert stopped.wait(10)
    with pytest.raises(RequestError, match=r"REQ-DEADLINE: .* timeout of 0\.05 s"):
        deadline.check()


def test_work_that_has_not_begun_in_time_never_begins_and_says_so() -> None:
    failed: queue.Queue[TrtkitError] = queue.Queue()
    free, begun = threading.Event(), []
    with ThreadPoolExecutor(1) as threads:
        threads.submit(free.wait)
        waiting = threads.submit(begun.append, 1)
        Deadline(0.05).bound_waiting(waiting, failed.put)
        error = failed.get(timeout=10)
        free.set()
    assert error.code == "REQ-DEADLINE"
    assert begun == []


def test_work_that_has_begun_is_left_alone() -> None:
    free, ended = threading.Event(), []
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(lambda: ended.append(free.wait(10)))
        Deadline(0.05).bound_waiting(working, lambda _: pytest.fail("given up"))
        time.sleep(0.2)
        free.set()
    assert ended == [True]


def test_a_body_in_time_is_left_alone() -> None:
    stopped = threading.Event()
    deadline = Deadline(60)
    with deadline.enforced(stopped.set):
        pass
    deadline.check()
    assert not stopped.is_set()


def test_a_time_beyond_what_the_clock_holds_is_no_deadline() -> None:
    for timeout_s in (2**63 / 1e6, 1e300):
        with Deadline(timeout_s).enforced(lambda: pytest.fail("stopped")):
            time.sleep(0.05)  # pytest reports what fails in the timer's thread


def test_waiting_counts_and_no_deadline_never_ends() -> None:
    now = [0.0]
    late, never = Deadline(2, lambda: now[0]), Deadline(None, lambda: now[0])
    now[0] = 2.5
    with pytest.raises(RequestError, match="REQ-DEADLINE"):
        late.check()
    never.check()
    with never.enforced(lambda: pytest.fail("stopped")):
        pass


def test_the_timeout_is_kserves_in_microseconds() -> None:
    assert inputs(timeout=1_500_000).timeout_s() == 1.5
    assert inputs().timeout_s() is None
    assert inputs(timeout=0).timeout_s() is None
    for wrong in (-1, True, "soon"):
        with pytest.raises(RequestError, match="parameter timeout must be a number of microseconds"):
            inputs(timeout=wrong).timeout_s()


@pytest.mark.parametrize(("now", "code"), [(100.0, "REQ-DEADLINE"), (0.0, "DRAFT-LOGITS")])
def test_what_fails_because_the_time_is_over_is_reported_as_that(now: float, code: str) -> None:
    times = iter((0.0, 0.0))
    deadline = Deadline(50.0, clock_s=lambda: next(times, now))
    with pytest.raises(TrtkitError, match=code), deadline.enforced(lambda: None):
        raise ServerError("the draft model returned no logits", "see the log", code="DRAFT-LOGITS")
