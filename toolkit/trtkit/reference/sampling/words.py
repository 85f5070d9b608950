"""Words of several tokens at the end of a sequence: stop words and bad words. Pure; knows ids only."""

from collections.abc import Sequence

Word = tuple[int, ...]


def ends_with_word(token_ids: Sequence[int], num_new: int, words: Sequence[Word]) -> bool:
    """Whether one of the words ends the sequence and at least its last token is one of the num_new last ones."""
    return num_new > 0 and any(_ends_with(token_ids, word) for word in words)


def completions(token_ids: Sequence[int], words: Sequence[Word]) -> tuple[int, ...]:
    """The tokens that would complete one of the words: they are forbidden when the words are bad."""
    return tuple(dict.fromkeys(word[-1] for word in words if _ends_with(token_ids, word[:-1])))


def _ends_with(token_ids: Sequence[int], word: Word) -> bool:
    return len(word) <= len(token_ids) and tuple(token_ids[len(token_ids) - len(word) :]) == tuple(word)
