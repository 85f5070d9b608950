"""Answers that come as text: which token ids they are taken for, and what the referee then says."""

from collections.abc import Sequence

import pytest
from parity_samples import END, header
from trtkit.evaluate.endpoints.endpoint import Generation
from trtkit.evaluate.oracle.record import OracleStep, RecordedAnswer
from trtkit.evaluate.oracle.tolerance import NumericProfile
from trtkit.evaluate.parity.text_answers import UNKNOWN, with_token_ids
from trtkit.evaluate.parity.verdicts import Referee

WORDS = {END: "", 5: "the", 6: " cat", 7: " dog", 8: " sat", 9: " ca", 10: "\ufffd", 11: " d"}
MARGINS = {7: 0.01, 9: 3.0, 11: 0.02}


def decode(token_ids: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in token_ids)


def step(*token_ids: int) -> OracleStep:
    gaps = tuple(MARGINS.get(token, 5.0) if rank else 0.0 for rank, token in enumerate(token_ids))
    return OracleStep(10.0, 4.0, token_ids, gaps, tuple(1.0 if rank else 0.0 for rank in range(len(token_ids))), -0.1)


ANSWER = RecordedAnswer(
    "a", "short", "key", "", (5,), (5, 6, 8, END), "end_id", (step(5, 6), step(6, 7, 11, 9), step(8, 5), step(END, 5))
)
REFEREE = Referee(header(), NumericProfile("bfloat16", 2, 16))


def judged(text: str) -> tuple[tuple[int, ...], str]:
    got = with_token_ids(ANSWER, Generation((), 0, (), text=text), decode, 4)
    return got.token_ids, REFEREE.compare(ANSWER, got, 4).verdict


@pytest.mark.parametrize(
    ("text", "token_ids", "verdict"),
    [
        ("the cat sat", (5, 6, 8, END), "identical"),
        ("the dog sat", (5, 7), "near-tie"),  # the likeliest recorded token that begins the rest
        ("the cat", (5, 6), "different"),  # an end where the oracle's end token is not even recorded
        ("the cow", (5, UNKNOWN), "different"),  # " c..." fits no recorded token but the oracle's own
        ("a cat", (UNKNOWN,), "different"),
        ("", (), "different"),
        ("the cat satthe", (5, 6, 8, 5), "different"),  # it goes on where the oracle ends
        ("the cat sat\ufffd", (5, 6, 8, END), "identical"),  # an incomplete last character may be shown or not
    ],
)
def test_text_is_followed_as_far_as_it_is_the_oracles(text: str, token_ids: tuple[int, ...], verdict: str) -> None:
    assert judged(text) == (token_ids, verdict)


def test_text_beyond_the_longest_answer_is_a_surplus_token() -> None:
    got = with_token_ids(ANSWER, Generation((), 0, (), text="the cat sat"), decode, 2)
    assert got.token_ids == (5, 6, UNKNOWN)
    assert REFEREE.compare(ANSWER, got, 2).verdict == "different"


def test_ids_that_are_there_are_left_alone() -> None:
    got = Generation((5, 6), 0, ())
    assert with_token_ids(ANSWER, got, decode, 4) is got
