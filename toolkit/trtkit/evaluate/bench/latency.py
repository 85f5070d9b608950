"""Latency figures of requests and what they add up to. Pure: arrivals in, milliseconds out; no clock, no server."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trtkit.evaluate.bench.bootstrap import CONFIDENCE, Interval, interval_of, percentile_statistic, ratio_interval
from trtkit.evaluate.endpoints.acceptance_figures import acceptance_of
from trtkit.evaluate.endpoints.endpoint import Answered, Generation

_NS_PER_MS = 1e6
QUANTILE_STEP = 5
_LEAST_FOR_A_RATE = 6


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
    """How values are distributed.

    The intervals hold the population's percentile with 95 % confidence (bootstrap over requests); None for too few
    values, see percentile_interval. quantiles are the
    0th, 5th, ..., 100th percentile, for drawing the distribution.
    """

    p50: float
    p95: float
    p90: float
    p99: float
    mean: float
    p50_interval: Interval | None
    p95_interval: Interval | None
    quantiles: tuple[float, ...] = field(repr=False, default=())


@dataclass(frozen=True)
class RunStats:
    """Many requests of one kind. tokens_per_s counts all tokens over the time in which requests were under way.

    acceptance_rate is accepted / drafted tokens; mean_acceptance_length is tokens per target pass, the recovered or
    bonus token included; acceptance_by_position is the share of drafts whose first, second, ... token was accepted.
    They are None where nothing was drafted or reported. mean_reused_blocks counts the blocks of the KV cache that a
    prompt found filled, None where the deployment does not say. tokens_per_s_interval is None for too few requests.
    """

    num_requests: int
    num_tokens: int
    ttft_ms: Spread
    tpot_ms: Spread | None
    e2e_ms: Spread
    tokens_per_s: float
    tokens_per_s_interval: Interval | None
    requests_per_s: float
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    acceptance_by_position: tuple[float, ...] | None
    mean_reused_blocks: float | None


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


def percentile_interval(values: Sequence[float], percent: float) -> Interval | None:
    """The bounds of the population's percentile; None where the values may well lie on one side of it.

    With n values that is so with probability (percent / 100)^n, or that of the other side; resampling them then finds
    nothing beyond. Below 72 values the 95th percentile has no bounds, the median has none below 6.
    """
    share = max(percent, 100 - percent) / 100
    if share ** len(values) > (1 - CONFIDENCE) / 2:
        return None
    return interval_of(values, percentile_statistic(percent))


def spread_of(values: Sequence[float]) -> Spread:
    """The distribution of at least one value."""
    return Spread(
        p50=percentile(values, 50),
        p95=percentile(values, 95),
        p90=percentile(values, 90),
        p99=percentile(values, 99),
        mean=math.fsum(values) / len(values),
        p50_interval=percentile_interval(values, 50),
        p95_interval=percentile_interval(values, 95),
        quantiles=tuple(percentile(values, percent) for percent in range(0, 101, QUANTILE_STEP)),
    )


def summarize_run(answers: Sequence[Answered], busy_ns: int) -> RunStats | None:
    """Add up the answers of a run that lasted busy_ns; None when no answer had a token."""
    generations = [answered.generation for answered in answers]
    timings = [timing for generation in generations if (timing := timing_of(generation)) is not None]
    if not timings:
        return None
    tpots = [timing.tpot_ms for timing in timings if timing.tpot_ms is not None]
    num_tokens = sum(timing.num_tokens for timing in timings)
    tokens_per_s = num_tokens / (busy_ns / 1e9)
    reused = [g.num_reused_blocks for g in generations if g.num_reused_blocks is not None]
    accepted = acceptance_of(answers)
    return RunStats(
        num_requests=len(timings),
        num_tokens=num_tokens,
        ttft_ms=spread_of([timing.ttft_ms for timing in timings]),
        tpot_ms=spread_of(tpots) if tpots else None,
        e2e_ms=spread_of([timing.e2e_ms for timing in timings]),
        tokens_per_s=tokens_per_s,
        tokens_per_s_interval=_rate_interval(timings, tokens_per_s),
        requests_per_s=len(timings) / (busy_ns / 1e9),
        acceptance_rate=accepted.rate,
        mean_acceptance_length=accepted.mean_length,
        acceptance_by_position=accepted.by_position,
        mean_reused_blocks=sum(reused) / len(reused) if reused else None,
    )


def _rate_interval(timings: Sequence[RequestTiming], tokens_per_s: float) -> Interval | None:
    """Tokens per second under way, resampled over requests, scaled to the run's own figure: a run keeps several
    requests under way, and how many is the load's and not chance. None for fewer than the median takes: a single
    request resampled is always itself."""
    if len(timings) < _LEAST_FOR_A_RATE:
        return None
    tokens, times = [timing.num_tokens for timing in timings], [timing.e2e_ms for timing in timings]
    if not math.fsum(times):
        return tokens_per_s, tokens_per_s
    scale = tokens_per_s / (sum(tokens) / math.fsum(times))
    low, high = ratio_interval(tokens, times)
    return low * scale, high * scale
