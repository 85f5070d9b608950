"""Stop words and bad words at the end of a sequence."""

from trtkit.reference.sampling.words import completions, ends_with_word

PROMPT = [1, 2, 3]


def test_a_word_counts_when_its_last_token_is_new() -> None:
    assert ends_with_word([*PROMPT, 4, 5], 2, ((4, 5),))
    assert ends_with_word([*PROMPT, 4], 1, ((2, 3, 4),)), "it may begin in the prompt"
    assert not ends_with_word(PROMPT, 0, ((2, 3),)), "one that the prompt ends with was there before"
    assert not ends_with_word([*PROMPT, 4, 5, 6], 3, ((4, 5),))
    assert not ends_with_word([4], 1, ((3, 4),)), "a word longer than the sequence"


def test_tokens_that_would_complete_a_word_are_named_once() -> None:
    assert completions([*PROMPT, 4], ((9,), (4, 5), (3, 4, 5), (3, 6), (4, 7, 8))) == (9, 5)
    assert completions([], ((9,), (1, 2))) == (9,)


def test_a_word_may_be_a_list() -> None:
    assert ends_with_word([*PROMPT, 4, 5], 2, ([4, 5],))  # type: ignore[arg-type]
