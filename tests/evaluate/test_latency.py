"""TTFT, TPOT, throughput and acceptance from arrivals small enough to add up by hand."""

import pytest
from trtkit.evaluate.endpoint import Arrival, Generation
from trtkit.evaluate.latency import percentile, spread_of, summarize_run, timing_of

MS = 1_000_000


def generation(*arrivals: tuple[int, int], drafted: int = 0, accepted: int = 0, passes: int = 0) -> Generation:
    """Arrivals are (milliseconds after sending, tokens)."""
    times = tuple(Arrival(100 * MS + ms * MS, tokens) for ms, tokens in arrivals)
    token_ids = tuple(range(sum(tokens for _, tokens in arrivals)))
    return Generation(token_ids, 100 * MS, times, drafted, accepted, passes)


def test_time_per_token_leaves_out_the_first_token() -> None:
    timing = timing_of(generation((50, 1), (60, 1), (70, 1)))
    assert timing is not None
    assert (timing.ttft_ms, timing.tpot_ms, timing.e2e_ms, timing.num_tokens) == (50, 10, 70, 3)


def test_a_response_of_several_tokens_shortens_the_time_per_token() -> None:
    timing = timing_of(generation((50, 1), (80, 3)))
    assert timing is not None
    assert timing.tpot_ms == 10


def test_a_single_token_has_no_time_per_token() -> None:
    timing = timing_of(generation((50, 1)))
    assert timing is not None
    assert timing.tpot_ms is None


def test_an_empty_final_response_changes_no_figure() -> None:
    assert timing_of(generation((50, 1), (60, 1), (99, 0))) == timing_of(generation((50, 1), (60, 1)))


def test_an_answer_without_tokens_has_no_figures() -> None:
    assert timing_of(generation((50, 0))) is None
    assert summarize_run([generation()], MS) is None


def test_percentiles_are_interpolated_between_neighbours() -> None:
    assert percentile([3, 1, 2], 50) == 2
    assert percentile([10, 20], 50) == 15
    assert percentile([0, 10, 20, 30, 40], 95) == 38
    assert percentile([7], 95) == 7
    with pytest.raises(ValueError, match="at least one value"):
        percentile([], 50)


def test_a_spread_is_median_and_95th_percentile() -> None:
    assert (spread_of([0, 10, 20, 30, 40]).p50, spread_of([0, 10, 20, 30, 40]).p95) == (20, 38)


def test_throughput_counts_all_tokens_over_the_time_of_the_run() -> None:
    stats = summarize_run([generation((50, 1), (60, 1)), generation((55, 1), (75, 1))], busy_ns=80 * MS)
    assert stats is not None
    assert stats.tokens_per_s == pytest.approx(50)
    assert (stats.num_requests, stats.num_tokens, stats.ttft_ms.p50) == (2, 4, 52.5)


def test_acceptance_is_summed_over_requests_before_it_is_divided() -> None:
    one = generation((1, 4), drafted=10, accepted=1, passes=3)
    other = generation((1, 6), drafted=2, accepted=2, passes=1)
    stats = summarize_run([one, other], MS)
    assert stats is not None
    assert stats.acceptance_rate == 3 / 12
    assert stats.mean_acceptance_length == 10 / 4


def test_nothing_drafted_is_no_acceptance_rather_than_zero() -> None:
    stats = summarize_run([generation((1, 1))], MS)
    assert stats is not None
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (None, None)
