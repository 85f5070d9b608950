"""What became of the drafts of many answers: rate, length, and share accepted at each position. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtkit.evaluate.endpoints.endpoint import Answered


@dataclass(frozen=True)
class AcceptanceFigures:
    """accepted / drafted; tokens per target pass; share of drafts accepted up to each position. None: not known."""

    rate: float | None
    mean_length: float | None
    by_position: tuple[float, ...] | None


def acceptance_of(answers: Sequence[Answered]) -> AcceptanceFigures:
    """The figures of all answers together: sums are taken before quotients."""
    generations = [answered.generation for answered in answers]
    drafted = sum(g.num_draft_tokens or 0 for g in generations)
    if not drafted:
        return AcceptanceFigures(None, None, None)
    accepted = sum(g.num_accepted_tokens or 0 for g in generations)
    passes = sum(g.num_passes or 0 for g in generations)
    tokens = sum(len(g.token_ids) for g in generations if g.num_passes)
    return AcceptanceFigures(accepted / drafted, tokens / passes if passes else None, _by_position(answers))


def _by_position(answers: Sequence[Answered]) -> tuple[float, ...] | None:
    """Counted over the steps of all answers; None where no step tells."""
    steps = [step for answered in answers for step in steps_of(answered)]
    longest = max((drafted for drafted, _ in steps), default=0)
    tried = [sum(drafted > position for drafted, _ in steps) for position in range(longest)]
    kept = [sum(accepted > position for _, accepted in steps) for position in range(longest)]
    return tuple(hits / count for hits, count in zip(kept, tried, strict=True)) or None


def steps_of(answered: Answered) -> Iterator[tuple[int, int]]:
    """(drafted, accepted) of every step of a streamed answer with a draft length of the client's choice.

    Each response is one step: what was accepted and one token of the target's own. A step drafts what was asked for,
    but no more than the answer may still take beside the target's own token. A draft that ended early, because it
    proposed an end token, counts as if it had gone on.
    """
    request, remaining = answered.request, answered.request.max_new_tokens
    if not (request.draft_len and request.stream and answered.generation.is_streamed):
        return
    for arrival in answered.generation.arrivals:
        drafted = min(request.draft_len, remaining - 1)
        if arrival.num_tokens and drafted > 0:
            yield drafted, min(arrival.num_tokens - 1, drafted)
        remaining -= arrival.num_tokens
