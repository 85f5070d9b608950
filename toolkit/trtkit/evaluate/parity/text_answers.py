"""Answers that come as text, turned into the token ids that a referee judges. Pure; knows a decoder, no server.

Text says less than ids: two tokens may look alike, and where the answers part only the candidates that the oracle
recorded can be told apart. What follows that place is not judged.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from trtkit.evaluate.endpoints.endpoint import Generation
from trtkit.evaluate.oracle.record import OracleStep, RecordedAnswer

UNKNOWN = -1
"""A token that the record does not hold: the oracle holds all recorded ones above it."""

Decode = Callable[[Sequence[int]], str]


def with_token_ids(answer: RecordedAnswer, got: Generation, decode: Decode, max_new_tokens: int) -> Generation:
    """The generation with ids, if it came as text: the oracle's own as far as their text is the deployment's, then the
    likeliest of the recorded tokens that goes on as the deployment does.

    An answer that ends earlier than the oracle's is left short, so that the referee takes an end token there.
    """
    if got.text is None:
        return got
    text, expected = _shown(got.text), answer.token_ids[:max_new_tokens]
    agreeing = _agreeing(expected, text, decode)
    if _shown(decode(expected[:agreeing])) == text:
        return replace(got, token_ids=tuple(expected[:agreeing]))
    # The text goes on: a token without text, as an end token, was not what the deployment said.
    while agreeing and decode(expected[: agreeing - 1]) == decode(expected[:agreeing]):
        agreeing -= 1
    other = _candidate(answer, agreeing, text, decode) if agreeing < len(expected) else UNKNOWN
    return replace(got, token_ids=(*expected[:agreeing], other))


def _agreeing(expected: Sequence[int], text: str, decode: Decode) -> int:
    """How many of the oracle's tokens have a text that the deployment's begins with."""
    return next((n for n in range(len(expected)) if not _begins(text, decode(expected[: n + 1]))), len(expected))


def _candidate(answer: RecordedAnswer, position: int, text: str, decode: Decode) -> int:
    step: OracleStep = answer.steps[position]
    before = answer.token_ids[:position]
    others = (token for token in step.token_ids if token != answer.token_ids[position])
    shorter = len(decode(before))
    return next(
        (token for token in others if _begins(text, longer := decode((*before, token))) and len(longer) > shorter),
        UNKNOWN,
    )


def _begins(text: str, prefix: str) -> bool:
    """Whether text begins with prefix, whose last character may be incomplete."""
    return text.startswith(_shown(prefix))


def _shown(text: str) -> str:
    """Without characters whose bytes are not all there: servers show these in different ways."""
    return text.rstrip("\ufffd")
