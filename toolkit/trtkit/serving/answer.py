"""From a run's tokens to what the caller sees: text piece by piece, ended by stop words. Pure; no Triton."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trtkit.serving.draft_target import DraftTargetRun
from trtkit.serving.text import TextStream
from trtkit.serving.words import StopWords


@dataclass(frozen=True)
class Piece:
    """Text that may be shown and the tokens behind it; the text of held-back characters comes with a later piece."""

    text: str
    token_ids: tuple[int, ...]


def pieces_of(
    run: DraftTargetRun, stream: TextStream, stop_words: StopWords, is_cancelled: Callable[[], bool]
) -> Iterator[Piece]:
    """One piece per step, and a last one with what was held back.

    The text ends before the first stop word; the tokens end with the one that completed it. A cancelled answer ends
    between two steps.
    """
    for token_ids in run.steps():
        shown, met = stop_words.push(stream.push(token_ids))
        if met:
            run.stop("stop_words")
        elif is_cancelled():
            run.stop("cancelled")
        yield Piece(shown, token_ids)
    if run.finish_reason == "stop_words":
        yield Piece("", ())
        return
    shown, met = stop_words.push(stream.finish())
    if met:
        run.finish_reason = "stop_words"
    yield Piece(shown + stop_words.finish(), ())
