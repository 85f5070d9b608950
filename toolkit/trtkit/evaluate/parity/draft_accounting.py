"""Does a deployment draft as many tokens as it was asked to? Pure: checked cases in, complaints out."""

from collections.abc import Sequence

from trtkit.evaluate.endpoints.acceptance_figures import steps_of
from trtkit.evaluate.endpoints.endpoint import Answered, EndpointRequest
from trtkit.evaluate.parity.check import CheckedCase

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
    drafted = sum(_drafted(case) for case in cases)
    if not draft_len:
        return f"{drafted} tokens were drafted though speculation was off" if drafted else None
    longest = max(arrival.num_tokens for case in cases for arrival in case.generation.arrivals)
    if longest > draft_len + 1:
        return f"a step brought {longest} tokens, more than draft length {draft_len} and one of the target's own"
    rooms = [_rooms(case, draft_len, max_new_tokens) for case in cases]
    expected = sum(map(sum, rooms))
    # A step that brought nothing but an end token shows in the count and not in the stream.
    unseen = draft_len * sum(len(case.generation.token_ids) < max_new_tokens for case in cases)
    if drafted > expected + unseen:
        return _counted(drafted, draft_len, rooms)
    answers = zip(cases, rooms, strict=True)
    whole = [(case, room) for case, room in answers if _shows_length(case, room, draft_len, max_new_tokens)]
    if longest == draft_len + 1 or not whole or any(_reaches(case, room, draft_len) for case, room in whole):
        return None
    return _counted(sum(_drafted(case) for case, _ in whole), draft_len, [room for _, room in whole])


def _counted(drafted: int, draft_len: int, rooms: Sequence[Sequence[int]]) -> str:
    expected, steps = sum(map(sum, rooms)), sum(map(len, rooms))
    return f"{drafted} tokens were drafted where draft length {draft_len} makes {expected} in {steps} steps"


def _drafted(case: CheckedCase) -> int:
    return case.generation.num_draft_tokens or 0


def _rooms(case: CheckedCase, draft_len: int, max_new_tokens: int) -> list[int]:
    """How many tokens each step of an answer may draft."""
    request = EndpointRequest("", max_new_tokens, draft_len)
    return [drafted for drafted, _ in steps_of(Answered(request, case.group, case.generation))]


def _shows_length(case: CheckedCase, room: Sequence[int], draft_len: int, max_new_tokens: int) -> bool:
    """Whether an answer had to draft at full length. One that ended by itself ends with a draft that stops there too,
    and may be nothing else."""
    return len(case.generation.token_ids) >= max_new_tokens and draft_len in room


def _reaches(case: CheckedCase, room: Sequence[int], draft_len: int) -> bool:
    """Whether an answer drafted more than any smaller draft length does. Drafts that propose an end token are shorter,
    so an answer may fall short of its room; not all of them do, where the length is kept."""
    return _drafted(case) > sum(min(draft_len - 1, each) for each in room)
