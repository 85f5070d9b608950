"""Stop words in text that arrives in pieces, and the packed token form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trtkit.serving.words import StopWords, pack_words, stack_words, unpack_words


def shown(words: list[str], pieces: list[str]) -> tuple[str, bool]:
    finder = StopWords(words)
    text = ""
    for piece in pieces:
        more, met = finder.push(piece)
        text += more
        if met:
            return text, True
    return text + finder.finish(), False


def test_a_stop_word_across_two_pieces_is_found_and_not_shown() -> None:
    assert shown(["\nUser:"], ["Hello.\nUs", "er: next"]) == ("Hello.", True)


def test_what_only_looked_like_a_stop_word_is_shown_later() -> None:
    finder = StopWords(["END"])
    assert finder.push("the EN") == ("the ", False)
    assert finder.push("TRY") == ("ENTRY", False)


def test_the_first_of_several_stop_words_counts() -> None:
    assert shown(["b", "c"], ["a c b"]) == ("a ", True)


@pytest.mark.parametrize("pieces", [["abc"], ["ab", "c"], ["a", "b", "c"]])
def test_the_word_that_is_complete_first_counts_wherever_the_text_is_cut(pieces: list[str]) -> None:
    assert shown(["abc", "b"], pieces) == ("a", True)
    assert shown(["bc", "abc"], pieces) == ("", True)


def test_no_words_hold_nothing_back() -> None:
    assert StopWords([""]).push("anything") == ("anything", False)


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_cutting_the_text_elsewhere_changes_nothing(text: str, words: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    _, expected_end = min(((at + len(word), at) for word in words if (at := text.find(word)) >= 0), default=(0, None))
    assert shown(words, pieces) == (text[:expected_end], expected_end is not None)


def test_packed_words_have_tokens_above_end_offsets() -> None:
    assert pack_words([[5, 6], [7]]).tolist() == [[5, 6, 7], [2, 3, -1]]
    assert pack_words([]).tolist() == [[0], [-1]]


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4), max_size=4))
def test_packing_is_undone_by_unpacking(words: list[list[int]]) -> None:
    assert [list(word) for word in unpack_words(pack_words(words))] == words


def test_rows_of_different_width_are_padded_as_empty() -> None:
    stacked = stack_words([pack_words([[1, 2, 3]]), pack_words([])])
    assert stacked.shape == (2, 2, 3)
    assert unpack_words(stacked[1]) == []


@pytest.mark.parametrize("offsets", [[2, 1, -1], [4, -1, -1]])
def test_offsets_that_run_backwards_or_past_the_tokens_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offset"):
        unpack_words(np.array([[1, 2, 3], offsets]))
