"""How many tokens to draft next: a fixed number, or what measured acceptance and times say. Pure; calls no model."""

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
_FIRST_DRAFT_LEN = 2
_HORIZON_TOKENS = 64
_SAVED_TOKENS = 64


@dataclass(frozen=True)
class Experience:
    """What answers so far have measured: a chance and times in nanoseconds; None is not measured yet.

    warm_ns is what the first draft of an answer takes beyond later ones: it computes the prompt. saved_ns is what the
    allowance for losses has left.
    """

    accept: float | None = None
    draft_ns: float | None = None
    verify_ns: float | None = None
    plain_ns: float | None = None
    warm_ns: float | None = None
    saved_ns: float = 0.0


_NO_EXPERIENCE = Experience()


class AdaptiveDraftLength:
    """Chooses the length with the lowest expected time per token, down to 0 and back, and bounds what a mistake costs.

    With a as the chance that one draft token is accepted, a step with K drafts yields (1 - a**(K+1)) / (1 - a) tokens
    (Leviathan et al. 2023, eq. 1) and takes K drafts and one verification. Time per draft token, per verification and
    per token of the target alone are moving averages of what was measured, in this answer and those before it, without
    the step that computes the prompt. The target's own time is measured first: that costs nothing. Then drafting is
    tried, once max_loss of the time so far pays for a token, since what a trial loses is not known before it.

    The debt is the time that drafting took beyond what the target alone would have taken for the same tokens. A length
    is used only if the debt stays within max_loss of the answer's time even when every draft is rejected; so drafting
    costs no more than that against "off", except for the draft's prefill in an answer that was expected to gain. While
    drafting is off, a single draft token is tried every `probe_tokens` tokens, as far as the same allowance pays for
    it, prefill included, so that a text that became easier is noticed.
    """

    def __init__(
        self,
        max_draft_len: int,
        experience: Experience = _NO_EXPERIENCE,
        *,
        probe_tokens: int = 32,
        memory: float = 0.9,
        max_loss: float = 0.015,
    ) -> None:
        self._max_draft_len = max_draft_len
        self._probe_tokens = probe_tokens
        self._max_loss = max_loss
        self._accept = _Average(memory, experience.accept)
        self._draft_ns = _Average(memory, experience.draft_ns)
        self._verify_ns = _Average(memory, experience.verify_ns)
        self._plain_ns = _Average(memory, experience.plain_ns)
        self._warm_ns = _Average(memory, experience.warm_ns)
        self._saved_ns = experience.saved_ns
        self._elapsed_ns = 0
        self._debt_ns = 0.0
        self._num_plain_tokens = 0
        self._has_prefilled = False
        self._has_drafted = False
        self._is_probing = False

    @property
    def experience(self) -> Experience:
        """What the next answer may begin with."""
        return Experience(
            accept=self._accept.value,
            draft_ns=self._draft_ns.value,
            verify_ns=self._verify_ns.value,
            plain_ns=self._plain_ns.value,
            warm_ns=self._warm_ns.value,
            saved_ns=self._savings_ns(),
        )

    def next(self) -> int:
        """The best length under what is known, 0 until the target's own time is known."""
        if self._plain_ns.value is None:
            return 0
        if self._draft_ns.value is None or self._verify_ns.value is None:
            can_try = self._debt_ns + self._plain_ns.value <= self._saved_ns + self._max_loss * self._elapsed_ns
            return min(_FIRST_DRAFT_LEN, self._max_draft_len) if can_try else 0
        best = min(range(self._max_draft_len + 1), key=self._expected_ns_per_token)
        if best > 0:
            return max((length for length in range(best + 1) if self._can_lose(length)), default=0)
        if self._num_plain_tokens >= self._probe_tokens and self._can_lose(1, with_prefill=True):
            self._num_plain_tokens, self._is_probing = 0, True
            return 1
        return 0

    def plain_tokens(self) -> int | None:
        """A stretch short enough that drafting can come back; the first ones are just long enough to be measured."""
        if self._plain_ns.value is None:
            return _FIRST_STRETCH_TOKENS if self._has_prefilled else 1
        return self._probe_tokens if self._expects_nothing() else _FIRST_STRETCH_TOKENS

    def observe_draft(self, outcome: Acceptance, draft_ns: int, target_ns: int) -> None:
        """Update chances, times and debt. Tokens after a rejection say nothing about their own chance."""
        tried = min(outcome.num_accepted_tokens + 1, outcome.num_draft_tokens)
        for position in range(tried):
            self._accept.add(1.0 if position < outcome.num_accepted_tokens else 0.0)
        charged_ns = float(draft_ns)
        if self._has_drafted:
            self._draft_ns.add(draft_ns / outcome.num_draft_tokens)
        else:
            usual_ns = outcome.num_draft_tokens * (self._draft_ns.value or 0.0)
            charged_ns = charged_ns if self._is_probing else usual_ns
            if self._draft_ns.value is not None:
                self._warm_ns.add(max(draft_ns - usual_ns, 0.0))
        if self._has_prefilled:
            self._verify_ns.add(target_ns)
        verify_ns = target_ns if self._has_prefilled else self._verify_ns.value or 0.0
        self._debt_ns += charged_ns + verify_ns - len(outcome.token_ids) * (self._plain_ns.value or 0.0)
        self._elapsed_ns += draft_ns + target_ns
        self._has_prefilled, self._has_drafted, self._is_probing = True, True, False

    def observe_plain(self, num_tokens: int, elapsed_ns: int) -> None:
        """Update the time of the target alone."""
        if num_tokens and self._has_prefilled:
            self._plain_ns.add(elapsed_ns / num_tokens)
        self._has_prefilled = True
        self._num_plain_tokens += num_tokens
        self._elapsed_ns += elapsed_ns

    def _expects_nothing(self) -> bool:
        lengths = range(self._max_draft_len + 1)
        return self._draft_ns.value is not None and min(lengths, key=self._expected_ns_per_token) == 0

    def _can_lose(self, length: int, *, with_prefill: bool = False) -> bool:
        """Whether the allowance covers a step of `length` drafts that are all rejected."""
        loss_ns = (
            length * (self._draft_ns.value or 0.0) + (self._verify_ns.value or 0.0) - (self._plain_ns.value or 0.0)
        )
        if with_prefill and not self._has_drafted:
            loss_ns += self._warm_ns.value or 0.0
        return length == 0 or self._debt_ns + max(loss_ns, 0.0) <= self._allowance_ns()

    def _allowance_ns(self) -> float:
        """A share of the answer's time; the first tokens may borrow from the next ones."""
        advance_ns = _HORIZON_TOKENS * (self._plain_ns.value or 0.0)
        return self._saved_ns + self._max_loss * max(self._elapsed_ns, advance_ns)

    def _savings_ns(self) -> float:
        """What is left for later answers. Gains are not saved up: they would pay for losses on another kind of text."""
        plain_ns = self._plain_ns.value or 0.0
        most_ns = max(self._max_loss * _SAVED_TOKENS * plain_ns, (self._warm_ns.value or 0.0) + plain_ns)
        left_ns = self._saved_ns + self._max_loss * self._elapsed_ns - max(self._debt_ns, 0.0)
        return min(left_ns, most_ns)

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
