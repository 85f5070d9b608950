"""An excerpt of more text than samples can come from, drawn by seed. Knows characters, no tokens.

Tokenizing a line takes hundreds of times its size in memory, so that a file of some hundred megabytes would exhaust a
machine for the sake of a thousandth of its tokens.
"""

import random
from collections.abc import Iterator, Sequence

from trtkit.calibration.texts import CalibrationText

_BLOCK = 16_384
_CHARACTERS_PER_TOKEN = 16  # many more than any script has: enough text is left to choose from
_LEAST = 1_000_000


def excerpt(texts: Sequence[CalibrationText], num_tokens: int, seed: int) -> list[CalibrationText]:
    """The texts as they are where they are few, else whole ones and blocks of long ones, in an order of the seed."""
    limit = max(_LEAST, _CHARACTERS_PER_TOKEN * num_tokens)
    if sum(map(_length, texts)) <= limit:
        return list(texts)
    blocks = [block for text in texts for block in _blocks(text)]
    random.Random(seed).shuffle(blocks)
    chosen, length = [], 0
    for block in blocks:
        if length < limit:
            chosen.append(block)
            length += _length(block)
    return chosen


def _length(text: CalibrationText) -> int:
    """Characters to tokenize."""
    return len(text.text or "") + sum(len(role) + len(content) for role, content in text.messages)


def _blocks(text: CalibrationText) -> Iterator[CalibrationText]:
    """Neighbouring parts of a long plain text; a chat stays whole."""
    if text.text is None or len(text.text) <= _BLOCK:
        yield text
        return
    for start in range(0, len(text.text), _BLOCK):
        yield CalibrationText(f"{text.name}@{start}", text.text[start : start + _BLOCK])
