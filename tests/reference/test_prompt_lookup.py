"""Drafts from the text itself: the longest n-gram at its end, where it occurred last, and what followed."""

import random

from trtkit.reference.prompt_lookup import NgramIndex, PromptLookup
from trtkit.reference.request import GenerationRequest


def lookup(token_ids: list[int], limit: int = 3, sizes: tuple[int, int] = (2, 3)) -> tuple[int, ...]:
    return NgramIndex(*sizes).continuation(token_ids, limit)


def test_what_followed_the_last_tokens_before_is_proposed() -> None:
    assert lookup([1, 2, 3, 4, 5, 6, 1, 2]) == (3, 4, 5)


def test_the_longest_ngram_decides() -> None:
    assert lookup([7, 1, 2, 5, 9, 1, 2, 6, 9, 7, 1, 2]) == (5, 9, 1), "7 1 2 before the later 1 2"


def test_the_latest_occurrence_wins_among_equals() -> None:
    assert lookup([1, 2, 3, 1, 2, 4, 1, 2]) == (4, 1, 2)


def test_a_first_occurrence_proposes_nothing() -> None:
    assert lookup([1, 2, 3, 4]) == ()
    assert lookup([5]) == ()
    assert lookup([1, 2, 3, 2], sizes=(2, 3)) == ()
    assert lookup([1, 2, 3, 2], sizes=(1, 3)) == (3, 2, 3)


def test_a_repetition_goes_on() -> None:
    assert lookup([4, 4, 4], limit=5) == (4, 4, 4, 4, 4)
    assert lookup([9, 1, 2, 3, 1, 2, 3, 1, 2], limit=5) == (3, 1, 2, 3, 1)


def test_an_index_that_grows_answers_as_a_new_one() -> None:
    rng = random.Random(0)
    token_ids = [rng.randrange(4) for _ in range(300)]
    index = NgramIndex(2, 4)
    end = 0
    while (end := end + rng.randrange(1, 6)) <= 300:
        assert index.continuation(token_ids[:end], 4) == NgramIndex(2, 4).continuation(token_ids[:end], 4)


def test_an_id_that_comes_back_with_another_text_starts_anew() -> None:
    proposer = PromptLookup()
    texts = [(1, 2, 3, 4, 1, 2), (9, 8, 1, 2), (9, 8, 1, 2, 9, 8)]
    found = [proposer.propose([(GenerationRequest("a", text, 9), 2)])[0].draft_ids for text in texts]
    assert found == [(3, 4), (), (1, 2)]
