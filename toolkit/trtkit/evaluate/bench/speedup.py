"""What a bench says about speculation: speed-up over the plain target, and the draft length to use. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trtkit.evaluate.bench.plan import BenchRun

WORTHWHILE = 1.05
"""Speed-up below which speculation stays off: less than runs differ by on a quiet machine."""


@dataclass(frozen=True)
class Speedup:
    """Tokens per second with this draft length over the plain target's at the same concurrency."""

    concurrency: int
    draft_len: int
    factor: float


def speedups_of(runs: Sequence[BenchRun]) -> list[Speedup]:
    """One for each speculative run in a closed loop that has a plain one beside it.

    In an open loop the arrivals decide the throughput, so there is nothing to compare.
    """
    plain = {
        run.load.concurrency: run.stats.tokens_per_s
        for run in runs
        if run.load.mode == "target" and run.load.concurrency is not None and run.stats is not None
    }
    return [
        Speedup(concurrency, run.load.draft_len, run.stats.tokens_per_s / plain[concurrency])
        for run in runs
        if run.load.mode == "speculative" and run.stats is not None and (concurrency := run.load.concurrency) in plain
    ]


def recommended_draft_lens(speedups: Iterable[Speedup]) -> dict[int, int]:
    """The best draft length by concurrency; 0, speculation off, where none is worthwhile."""
    best: dict[int, Speedup] = {}
    for speedup in speedups:
        standing = best.get(speedup.concurrency)
        if standing is None or speedup.factor > standing.factor:
            best[speedup.concurrency] = speedup
    return {c: s.draft_len if s.factor >= WORTHWHILE else 0 for c, s in sorted(best.items())}
