"""How many tokens to draft next: a fixed number, or what measured acceptance and times say. Pure; calls no model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trtkit.acceptance import Acceptance


class DraftLength(Protocol):
    """Consulted before each step and told what came of it."""

    def next(self) -> int:
        """Draft tokens for the next step; 0 lets the target decode alone."""
        ...

    def plain_tokens(self) -> int | None:
        """Tokens that the target decodes alone before `next` is asked again; None is the whole answer."""
        ...

    def observe_draft(self, outcome: Acceptance, draft_ns: int, target_ns: int) -> None:
        """One draft was verified."""
        ...

    def observe_plain(self, num_tokens: int, elapsed_ns: int) -> None:
        """The target decoded alone."""
        ...


class FixedDraftLength:
    """Always the same number, as the request or the build says."""

    def __init__(self, max_draft_len: int) -> None:
        self._max_draft_len = max_draft_len

    def next(self) -> int:
        """The number given."""
        return self._max_draft_len

    def plain_tokens(self) -> int | None:
        """Without drafts, the whole answer."""
        return None

    def observe_draft(self, outcome: Acceptance, draft_ns: int, target_ns: int) -> None:
        """Nothing to learn."""

    def observe_plain(self, num_tokens: int, elapsed_ns: int) -> None:
        """Nothing to learn."""


_FIRST_STRETCH_TOKENS = 8


@dataclass(frozen=True)
class Experience:
    """What answers so far have measured: a chance and three times in nanoseconds; None is not measured yet."""

    accept: float | None = None
    draft_ns: float | None = None
    verify_ns: float | None = None
    plain_ns: float | None = None


_NO_EXPERIENCE = Experience()


class AdaptiveDraftLength:
    """Chooses the length with the lowest expected time per token, down to 0 and back.

    With a as the chance that one draft token is accepted, a step with K drafts yields (1 - a**(K+1)) / (1 - a) tokens
    (Leviathan et al. 2023, eq. 1) and takes K drafts and one verification. Time per draft token, per verification and
    per token of the target alone are moving averages of what was measured, in this answer and those before it, without
    the first step of an answer, which computes the whole prompt. A short stretch without drafts is measured once. While
    drafting is off, one step with a single draft token follows every `probe_tokens` tokens, so that a text that became
    easier is noticed.
    """

    def __init__(
        self,
        max_draft_len: int,
        experience: Experience = _NO_EXPERIENCE,
        *,
        probe_tokens: int = 32,
        memory: float = 0.8,
    ) -> None:
        self._max_draft_len = max_draft_len
        self._probe_tokens = probe_tokens
        self._accept = _Average(memory, experience.accept)
        self._draft_ns = _Average(memory, experience.draft_ns)
        self._verify_ns = _Average(memory, experience.verify_ns)
        self._plain_ns = _Average(memory, experience.plain_ns)
        self._probe_is_due = False
        self._has_prefilled = False

    @property
    def experience(self) -> Experience:
        """What the next answer may begin with."""
        return Experience(self._accept.value, self._draft_ns.value, self._verify_ns.value, self._plain_ns.value)

    def next(self) -> int:
        """The best length under what is known; the maximum before anything was measured."""
        if self._verify_ns.value is None:
            return self._max_draft_len
        if self._plain_ns.value is None:
            return 0
        best = self._best()
        if best == 0 and self._probe_is_due:
            self._probe_is_due = False
            return 1
        return best

    def plain_tokens(self) -> int | None:
        """A stretch short enough that drafting can come back, and the first one just long enough to be measured."""
        return self._probe_tokens if self._plain_ns.value is not None else _FIRST_STRETCH_TOKENS

    def observe_draft(self, outcome: Acceptance, draft_ns: int, target_ns: int) -> None:
        """Update chances and times. Tokens after a rejection say nothing about their own chance."""
        tried = min(outcome.num_accepted_tokens + 1, outcome.num_draft_tokens)
        for position in range(tried):
            self._accept.add(1.0 if position < outcome.num_accepted_tokens else 0.0)
        if self._has_prefilled:
            self._draft_ns.add(draft_ns / outcome.num_draft_tokens)
            self._verify_ns.add(target_ns)
        self._has_prefilled = True

    def observe_plain(self, num_tokens: int, elapsed_ns: int) -> None:
        """Update the time of the target alone, and let one draft be tried next."""
        if num_tokens and self._has_prefilled:
            self._plain_ns.add(elapsed_ns / num_tokens)
        self._has_prefilled = True
        self._probe_is_due = True

    def _best(self) -> int:
        lengths: Sequence[int] = range(self._max_draft_len + 1)
        return min(lengths, key=self._expected_ns_per_token)

    def _expected_ns_per_token(self, max_draft_len: int) -> float:
        if max_draft_len == 0:
            return self._plain_ns.value or 0.0
        accept = min(self._accept.value or 0.0, 0.999)
        tokens = (1 - accept ** (max_draft_len + 1)) / (1 - accept)
        return (max_draft_len * (self._draft_ns.value or 0.0) + (self._verify_ns.value or 0.0)) / tokens


class _Average:
    """An exponential moving average; None until something was added."""

    def __init__(self, memory: float, value: float | None) -> None:
        self._memory = memory
        self.value = value

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self._memory * self.value + (1 - self._memory) * value
