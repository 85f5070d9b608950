"""Which tokens a deployment with rolling sinks shows its models, told from the outside. Pure; own arithmetic.

Past the window a deployment answers what its model says to sinks and the most recent tokens. So it is held to the
oracle's answer to the same tokens, and for that it must be known what was dropped when: by the rule of the YAML, and
by how many tokens each step brought, since a step needs room for its drafts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RollingRule:
    """At most sink_tokens + window_tokens are shown; for more room the evict_tokens oldest after the sinks are dropped,
    as often as it takes."""

    sink_tokens: int
    window_tokens: int
    evict_tokens: int

    def passes_window(self, num_tokens: int) -> bool:
        """Whether so many tokens do not fit."""
        return num_tokens > self.sink_tokens + self.window_tokens

    def shown(self, token_ids: Sequence[int], room: int) -> tuple[int, ...]:
        """What is left of these tokens when `room` more have to fit."""
        sinks, rest = token_ids[: self.sink_tokens], token_ids[self.sink_tokens :]
        while rest and self.passes_window(len(sinks) + len(rest) + room):
            rest = rest[self.evict_tokens :]
        return (*sinks, *rest)


@dataclass(frozen=True)
class Stretch:
    """Tokens of an answer between two evictions, and what the first of them was generated after."""

    context_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


def stretches_of(
    rule: RollingRule, prompt_ids: Sequence[int], steps: Sequence[tuple[int, ...]], draft_len: int, max_new_tokens: int
) -> Iterator[Stretch]:
    """Cut an answer at its evictions. steps: the tokens of each step, with draft_len drafts of every step but the last
    ones, which draft no more than they can use. Without drafts, a step is a token."""
    context: tuple[int, ...] = tuple(prompt_ids)
    begun: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    num_done = 0
    for step in steps:
        room = max(0, min(draft_len, max_new_tokens - num_done - 1)) + 1
        kept = rule.shown(context, room)
        if len(kept) < len(context) or not tokens:
            if tokens:
                yield Stretch(begun, tokens)
            begun, tokens = kept, ()
        tokens, context, num_done = (*tokens, *step), (*kept, *step), num_done + len(step)
    if tokens:
        yield Stretch(begun, tokens)
