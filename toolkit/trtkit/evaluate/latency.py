"""Latency figures of requests and what they add up to. Pure: arrivals in, milliseconds out; no clock, no server."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtkit.evaluate.endpoint import Generation

_NS_PER_MS = 1e6


@dataclass(frozen=True)
class RequestTiming:
    """One request. ttft_ms is the time from sending it to its first tokens, tpot_ms the time per token after those
    (None where none followed), e2e_ms the time to its last token."""

    num_tokens: int
    ttft_ms: float
    tpot_ms: float | None
    e2e_ms: float


@dataclass(frozen=True)
class Spread:
    """Median and 95th percentile."""

    p50: float
    p95: float


@dataclass(frozen=True)
class RunStats:
    """Many requests of one kind. tokens_per_s counts all tokens over the time in which requests were under way.

    acceptance_rate is accepted / drafted tokens; mean_acceptance_length is tokens per target pass, the recovered or
    bonus token included; both are None where nothing was drafted or reported.
    """

    num_requests: int
    num_tokens: int
    ttft_ms: Spread
    tpot_ms: Spread | None
    e2e_ms: Spread
    tokens_per_s: float
    acceptance_rate: float | None
    mean_acceptance_length: float | None


def timing_of(generation: Generation) -> RequestTiming | None:
    """The figures of one answer; None for an answer without tokens, which has no first token to time."""
    with_tokens = [arrival for arrival in generation.arrivals if arrival.num_tokens]
    if not with_tokens:
        return None
    num_tokens = sum(arrival.num_tokens for arrival in with_tokens)
    first_ns, last_ns = with_tokens[0].at_ns, with_tokens[-1].at_ns
    num_later = num_tokens - with_tokens[0].num_tokens
    tpot_ms = (last_ns - first_ns) / _NS_PER_MS / num_later if num_later else None
    ttft_ns, e2e_ns = first_ns - generation.sent_ns, last_ns - generation.sent_ns
    return RequestTiming(num_tokens, ttft_ns / _NS_PER_MS, tpot_ms, e2e_ns / _NS_PER_MS)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated linearly between neighbours.

    Raises ValueError for no values.
    """
    if not values:
        raise ValueError("a percentile needs at least one value")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread_of(values: Sequence[float]) -> Spread:
    """Median and 95th percentile of at least one value."""
    return Spread(percentile(values, 50), percentile(values, 95))


def summarize_run(generations: Sequence[Generation], busy_ns: int) -> RunStats | None:
    """Add up the answers of a run that lasted busy_ns; None when no answer had a token."""
    timings = [timing for generation in generations if (timing := timing_of(generation)) is not None]
    if not timings:
        return None
    tpots = [timing.tpot_ms for timing in timings if timing.tpot_ms is not None]
    num_tokens = sum(timing.num_tokens for timing in timings)
    rate, length = _acceptance(generations)
    return RunStats(
        num_requests=len(timings),
        num_tokens=num_tokens,
        ttft_ms=spread_of([timing.ttft_ms for timing in timings]),
        tpot_ms=spread_of(tpots) if tpots else None,
        e2e_ms=spread_of([timing.e2e_ms for timing in timings]),
        tokens_per_s=num_tokens / (busy_ns / 1e9),
        acceptance_rate=rate,
        mean_acceptance_length=length,
    )


def _acceptance(generations: Sequence[Generation]) -> tuple[float | None, float | None]:
    drafted = sum(g.num_draft_tokens or 0 for g in generations)
    if not drafted:
        return None, None
    accepted = sum(g.num_accepted_tokens or 0 for g in generations)
    passes = sum(g.num_passes or 0 for g in generations)
    tokens = sum(len(g.token_ids) for g in generations if g.num_passes)
    return accepted / drafted, tokens / passes if passes else None
