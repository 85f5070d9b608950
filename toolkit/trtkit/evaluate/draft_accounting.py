"""Does a deployment draft as many tokens as it was asked to? Pure: checked cases in, complaints out."""

from collections.abc import Sequence

from trtkit.evaluate.acceptance_figures import steps_of
from trtkit.evaluate.check import CheckedCase
from trtkit.evaluate.endpoint import Answered, EndpointRequest

_STREAMED = ("cold", "repeated", "concurrent")


def draft_length_faults(cases: Sequence[CheckedCase], max_new_tokens: int) -> list[str]:
    """One sentence for each draft length that was not kept; empty when all were, or nothing is reported."""
    draft_lens = sorted({case.draft_len for case in cases if case.draft_len is not None})
    counted = {k: [c for c in cases if c.draft_len == k and _counts(c)] for k in draft_lens}
    return [fault for k, kept in counted.items() if kept and (fault := _fault(k, kept, max_new_tokens)) is not None]


def _counts(case: CheckedCase) -> bool:
    got = case.generation
    return case.condition in _STREAMED and got.num_draft_tokens is not None and got.is_streamed


def _fault(draft_len: int, cases: Sequence[CheckedCase], max_new_tokens: int) -> str | None:
    drafted = sum(case.generation.num_draft_tokens or 0 for case in cases)
    if not draft_len:
        return f"{drafted} tokens were drafted though speculation was off" if drafted else None
    longest = max(arrival.num_tokens for case in cases for arrival in case.generation.arrivals)
    if longest > draft_len + 1:
        return f"a step brought {longest} tokens, more than draft length {draft_len} and one of the target's own"
    request = EndpointRequest("", max_new_tokens, draft_len)
    steps = [step for case in cases for step in steps_of(Answered(request, case.group, case.generation))]
    expected = sum(drafted for drafted, _ in steps)
    # A step that brought nothing but an end token shows in the count and not in the stream.
    unseen = draft_len * sum(len(case.generation.token_ids) < max_new_tokens for case in cases)
    # Drafts that propose an end token are shorter, but that does not make half a token less in every step.
    least = expected * (1 - 1 / (2 * draft_len))
    if least <= drafted <= expected + unseen:
        return None
    return f"{drafted} tokens were drafted where draft length {draft_len} makes {expected} in {len(steps)} steps"
