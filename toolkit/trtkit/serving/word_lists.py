"""A client's words as engines take them: token lists, and a bias with one number per token. Knows the tokenizer."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trtkit.serving.text import TextTokenizer


def word_tokens(tokenizer: TextTokenizer, words: Sequence[str]) -> list[list[int]]:
    """Every way each word may appear in an answer, as it stands and after a space."""
    return [ids for word in words for ids in tokenizer.encode_word(word)]


def embedding_bias(
    tokenizer: TextTokenizer, words: Sequence[str], weights: Sequence[float], vocab_size: int
) -> NDArray[np.float32] | None:
    """What is added to the logits: a word's weight at every token of its spellings. None without words."""
    if not words:
        return None
    bias = np.zeros(vocab_size, dtype=np.float32)
    for word, weight in zip(words, weights, strict=True):
        for token_id in {token_id for ids in tokenizer.encode_word(word) for token_id in ids}:
            bias[token_id] += weight
    return bias
