"""TTFT, TPOT, throughput and acceptance from arrivals small enough to add up by hand."""

import numpy as np
import pytest
from trtkit.evaluate.bench.latency import percentile, percentile_interval, spread_of, summarize_run, timing_of
from trtkit.evaluate.endpoints.endpoint import Answered, Arrival, EndpointRequest, Generation

MS = 1_000_000


def answered(*generations: Generation, draft_len: int = 0, max_new_tokens: int = 8) -> list[Answered]:
    request = EndpointRequest("", max_new_tokens, draft_len)
    return [Answered(request, "prompts", each) for each in generations]


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


def test_the_tokens_of_the_first_response_took_none_of_the_time_after_it() -> None:
    timing = timing_of(generation((50, 3), (80, 1)))
    assert timing is not None
    assert timing.tpot_ms == 30
    assert (whole := timing_of(generation((50, 3)))) is not None and whole.tpot_ms is None


def test_a_single_token_has_no_time_per_token() -> None:
    timing = timing_of(generation((50, 1)))
    assert timing is not None
    assert timing.tpot_ms is None


def test_an_empty_final_response_changes_no_figure() -> None:
    assert timing_of(generation((50, 1), (60, 1), (99, 0))) == timing_of(generation((50, 1), (60, 1)))


def test_an_answer_without_tokens_has_no_figures() -> None:
    assert timing_of(generation((50, 0))) is None
    assert summarize_run(answered(generation()), MS) is None


def test_percentiles_are_interpolated_between_neighbours() -> None:
    assert percentile([3, 1, 2], 50) == 2
    assert percentile([10, 20], 50) == 15
    assert percentile([0, 10, 20, 30, 40], 95) == 38
    assert percentile([7], 95) == 7
    with pytest.raises(ValueError, match="at least one value"):
        percentile([], 50)


def test_a_spread_is_median_and_95th_percentile() -> None:
    spread = spread_of([0, 10, 20, 30, 40])
    assert (spread.p50, spread.p95, spread.mean) == (20, 38, 20)
    assert (spread.quantiles[0], spread.quantiles[10], spread.quantiles[-1]) == (0, 20, 40)


def test_throughput_counts_all_tokens_over_the_time_of_the_run() -> None:
    stats = summarize_run(answered(generation((50, 1), (60, 1)), generation((55, 1), (75, 1))), busy_ns=80 * MS)
    assert stats is not None
    assert stats.tokens_per_s == pytest.approx(50)
    assert (stats.num_requests, stats.num_tokens, stats.ttft_ms.p50) == (2, 4, 52.5)


def test_acceptance_is_summed_over_requests_before_it_is_divided() -> None:
    one = generation((1, 4), drafted=10, accepted=1, passes=3)
    other = generation((1, 6), drafted=2, accepted=2, passes=1)
    stats = summarize_run(answered(one, other), MS)
    assert stats is not None
    assert stats.acceptance_rate == 3 / 12
    assert stats.mean_acceptance_length == 10 / 4


def test_nothing_drafted_is_no_acceptance_rather_than_zero() -> None:
    stats = summarize_run(answered(generation((1, 1))), MS)
    assert stats is not None
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (None, None)


def test_the_acceptance_of_each_position_is_counted_over_the_steps_that_drafted_so_far() -> None:
    # K = 3, at most 8 tokens: 3 drafted and 3 accepted, 3 and 0, then room for 2 beside the target's own, 1 accepted.
    answer = generation((1, 4), (2, 1), (3, 2), drafted=8, accepted=4, passes=3)
    stats = summarize_run(answered(answer, draft_len=3), MS)
    assert stats is not None
    assert stats.acceptance_by_position == (2 / 3, 1 / 3, 1 / 2)


def test_a_whole_answer_says_nothing_about_positions() -> None:
    whole = Answered(EndpointRequest("", 8, 3, stream=False), "prompts", generation((9, 8), drafted=6, accepted=5))
    stats = summarize_run([whole], MS)
    assert stats is not None
    assert (stats.acceptance_rate, stats.acceptance_by_position) == (5 / 6, None)


@pytest.mark.parametrize(
    ("percent", "num_values", "least"), [(50, 8, 0.86), (50, 16, 0.91), (50, 40, 0.91), (95, 80, 0.85), (95, 160, 0.89)]
)
def test_the_interval_of_a_percentile_holds_the_true_one_in_most_samples(
    percent: float, num_values: int, least: float
) -> None:
    """95 % nominal; the percentile bootstrap falls short of it for few values."""
    rng = np.random.default_rng(0)
    true, hits = -10.0 * np.log(1 - percent / 100), 0
    for _ in range(400):
        bounds = percentile_interval(rng.exponential(10.0, size=num_values).tolist(), percent)
        assert bounds is not None
        hits += bounds[0] <= true <= bounds[1]
    assert hits >= least * 400


def test_a_percentile_that_all_values_may_lie_below_has_no_interval() -> None:
    assert [percentile_interval(range(n), 95) is None for n in (1, 16, 71, 72)] == [True, True, True, False]
    assert [percentile_interval(range(n), 50) is None for n in (5, 6)] == [True, False]
    assert spread_of([1.0, 2.0]).p50_interval is None


def test_throughput_has_an_interval_around_it_that_more_requests_narrow() -> None:
    def width(num_requests: int) -> float:
        answers = [generation((5, 1), (20 + number % 7, 3)) for number in range(num_requests)]
        stats = summarize_run(answered(*answers), busy_ns=100 * MS)
        assert stats is not None
        assert stats.tokens_per_s_interval is not None
        low, high = stats.tokens_per_s_interval
        assert low <= stats.tokens_per_s <= high
        return (high - low) / stats.tokens_per_s

    assert 0 < width(200) < width(20) / 2


def test_a_few_requests_say_nothing_of_how_far_throughput_scatters() -> None:
    stats = [summarize_run(answered(*[generation((5, 1), (20, 3))] * count), busy_ns=100 * MS) for count in (1, 5, 6)]
    assert [each is not None and each.tokens_per_s_interval is None for each in stats] == [True, True, False]
