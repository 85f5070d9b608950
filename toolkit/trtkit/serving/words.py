"""Stop words, in an answer's text and in TensorRT-LLM's packed token form. Pure; knows no tokenizer."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class StopWords:
    """Finds the stop word that is complete first, in a text that arrives in pieces, wherever the pieces are cut.

    Of two that are complete at once the longer one counts.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = tuple(word for word in words if word)
        self._held = ""

    @property
    def are_any(self) -> bool:
        """Whether there is anything to find."""
        return bool(self._words)

    def push(self, text: str) -> tuple[str, bool]:
        """(text that may be shown, whether a stop word was met).

        The text ends before the stop word. What could be the beginning of one is held back.
        """
        self._held += text
        found = [(at + len(word), at) for word in self._words if (at := self._held.find(word)) >= 0]
        if found:
            _, begins = min(found)
            shown = self._held[:begins]
            self._held = ""
            return shown, True
        keep = self._longest_beginning()
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return shown, False

    def finish(self) -> str:
        """What was held back, when no text follows."""
        rest, self._held = self._held, ""
        return rest

    def _longest_beginning(self) -> int:
        """Length of the longest end of the held text with which some word begins."""
        longest = max((len(word) - 1 for word in self._words), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(word.startswith(self._held[-length:]) for word in self._words):
                return length
        return 0


def pack_words(words: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """TensorRT-LLM's form of a word list.

    W words with n tokens in total -> [2, max(n, W, 1)]: the tokens of all words in a row, padded with 0, above the
    end offset of each word, padded with -1.
    """
    tokens = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words], dtype=np.int64).tolist()
    width = max(len(tokens), len(ends), 1)
    return np.array([tokens + [0] * (width - len(tokens)), ends + [-1] * (width - len(ends))], dtype=np.int32)


def unpack_words(packed: NDArray[Any]) -> list[tuple[int, ...]]:
    """The words of `pack_words`; ValueError when offsets run backwards or past the tokens."""
    tokens, offsets = packed.tolist()
    words, start = [], 0
    for end in offsets:
        if end < 0:
            break
        if not start < end <= len(tokens):
            raise ValueError(f"offset {end} does not follow {start} within {len(tokens)} tokens")
        words.append(tuple(tokens[start:end]))
        start = end
    return words


def stack_words(packed: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Word lists of B rows, padded to one width: [B, 2, n]."""
    width = max(words.shape[1] for words in packed)
    stacked = np.zeros((len(packed), 2, width), dtype=np.int32)
    stacked[:, 1] = -1
    for row, words in zip(stacked, packed, strict=True):
        row[:, : words.shape[1]] = words
    return stacked
