"""The outcome of verifying one draft, and the rates computed from many. Pure; knows no model and no server."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Acceptance:
    """The outcome of verifying one draft.

    token_ids holds the accepted draft tokens and then exactly one token of the target's own: the recovered
    token after a rejection, or the bonus token after a full acceptance.
    """

    num_draft_tokens: int
    token_ids: tuple[int, ...]

    @property
    def num_accepted_tokens(self) -> int:
        """Draft tokens kept."""
        return len(self.token_ids) - 1


@dataclass(frozen=True)
class AcceptanceSummary:
    """Counts over many target passes.

    acceptance_rate is accepted / drafted; mean_acceptance_length is tokens per target pass and includes the
    recovered or bonus token (the definitions of vLLM's v1/spec_decode/metrics.py).
    """

    num_passes: int
    num_draft_tokens: int
    num_accepted_tokens: int

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens, or None when nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per target pass, or None when there was no pass."""
        return 1 + self.num_accepted_tokens / self.num_passes if self.num_passes else None


def summarize(outcomes: Iterable[Acceptance]) -> AcceptanceSummary:
    """Add up the outcomes of many target passes."""
    kept = list(outcomes)
    return AcceptanceSummary(
        num_passes=len(kept),
        num_draft_tokens=sum(outcome.num_draft_tokens for outcome in kept),
        num_accepted_tokens=sum(outcome.num_accepted_tokens for outcome in kept),
    )
