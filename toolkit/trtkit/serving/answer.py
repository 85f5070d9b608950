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
        shown, num_kept, met = _show(token_ids, stream, stop_words)
        if met:
            run.stop_at_word(num_dropped=len(token_ids) - num_kept)
        elif is_cancelled():
            run.stop("cancelled")
        yield Piece(shown, token_ids[:num_kept])
    if run.finish_reason == "stop_words":
        yield Piece("", ())
        return
    shown, met = stop_words.push(stream.finish())
    if met:
        run.stop_at_word()
    yield Piece(shown + stop_words.finish(), ())


def _show(token_ids: tuple[int, ...], stream: TextStream, stop_words: StopWords) -> tuple[str, int, bool]:
    """The text of a step up to a stop word, how many of its tokens belong to the answer, and whether a word was met."""
    if not stop_words.are_any:
        return stream.push(token_ids), len(token_ids), False
    text = ""
    for number, token_id in enumerate(token_ids, start=1):
        shown, met = stop_words.push(stream.push((token_id,)))
        text += shown
        if met:
            return text, number, True
    return text, len(token_ids), False
