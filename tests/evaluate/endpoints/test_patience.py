"""Silence of a deployment: counted while something is awaited, from the last that came, whatever it was for."""

import threading

import pytest
from trtkit.errors import ServerError
from trtkit.evaluate.endpoints import patience
from trtkit.evaluate.endpoints.patience import Patience


class Now:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def patient(now: Now, monkeypatch: pytest.MonkeyPatch) -> Patience:
    monkeypatch.setattr(patience, "LONGEST_SILENCE_S", 10.0)
    return Patience(lambda: 7, now)


def test_silence_counts_from_the_request(patient: Patience, now: Now) -> None:
    now.s += 100
    with patient.awaiting():
        assert patient.left_s == 10
        now.s += 4
        assert patient.left_s == 6


def test_whatever_comes_ends_the_silence_of_all(patient: Patience, now: Now) -> None:
    with patient.awaiting(), patient.awaiting():
        now.s += 9
        assert patient.now_ns() == 7  # a response of one of the two is stamped
        now.s += 9
        assert patient.left_s == 1


def test_nothing_is_missed_while_nothing_is_awaited(patient: Patience, now: Now) -> None:
    with patient.awaiting():
        now.s += 1
    now.s += 1000
    assert patient.left_s == 10


def test_an_error_of_an_answer_that_was_given_up_is_about_the_silence(patient: Patience, now: Now) -> None:
    gave_up = threading.Event()
    with pytest.raises(ServerError, match="nothing came for 10 s"), patient.awaiting():
        now.s += 10
        with patient.limited(gave_up.set):
            assert gave_up.wait(30)
        raise ServerError("channel closed", "...")


def test_an_error_of_another_answer_is_its_own(patient: Patience) -> None:
    with pytest.raises(ServerError, match="out of memory"), patient.awaiting(), patient.limited(pytest.fail):
        raise ServerError("out of memory", "...")
