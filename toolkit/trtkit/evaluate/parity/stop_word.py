"""A stop word for a recorded answer, and what an answer with it must be. Pure; knows a decoder, no server."""

from dataclasses import dataclass, replace

from trtkit.evaluate.endpoints.endpoint import Generation
from trtkit.evaluate.oracle.record import RecordedAnswer
from trtkit.evaluate.parity.text_answers import Decode

_FIRST = 3


@dataclass(frozen=True)
class StopWord:
    """The word, and the number of tokens whose last one completes it."""

    word: str
    num_tokens: int


def find_stop_word(answer: RecordedAnswer, decode: Decode, slack: int) -> StopWord | None:
    """The first word of the answer that was not in its text before, with more than `slack` tokens after it.

    None for an answer that is too short, or says nothing new that can be written down.
    """
    for end in range(_FIRST, len(answer.token_ids) - slack):
        before, text = decode(answer.token_ids[: end - 1]), decode(answer.token_ids[:end])
        word = text[len(before) :].strip()
        readable = word.isprintable() and "\ufffd" not in word
        if word and readable and word not in before and text.startswith(before):
            return StopWord(word, end)
    return None


def up_to_stop(got: Generation, stop: StopWord, slack: int) -> Generation:
    """The generation without what its last step brought beyond the word; one that went further is left as it is."""
    surplus = len(got.token_ids) - stop.num_tokens
    return replace(got, token_ids=got.token_ids[: stop.num_tokens]) if 0 < surplus <= slack else got
