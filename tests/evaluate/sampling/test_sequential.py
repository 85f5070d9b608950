"""The sequential test: its level and power hold over all looks together, and a good source ends it early."""

from collections.abc import Sequence

import numpy as np
import pytest
from trtkit.evaluate.endpoints.endpoint import EndpointRequest
from trtkit.evaluate.sampling.distribution import make_bins
from trtkit.evaluate.sampling.draws import Source, sample_and_test
from trtkit.evaluate.sampling.sequential import LEAST_ALPHA, LOOKS, Design, decide, make_design

P = {7: 0.4, 8: 0.3, 9: 0.15, 10: 0.1, 11: 0.05}
RUNS = 200


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def outcomes(truth: Sequence[float], design: Design) -> tuple[float, float]:
    """(share of sources rejected, mean samples) over RUNS sources that follow `truth`."""
    rejected, used = 0, 0
    for run in range(RUNS):
        draws = rng(run).choice(list(P), size=design.looks[-1], p=truth)
        for number, look in enumerate(design.looks, 1):
            bins = make_bins(P, look)
            counts = bins.count(draws[:look].tolist())
            is_last = number == len(design.looks)
            decision, _ = decide(counts, bins.probabilities, design, is_last=is_last, rng=rng(run + 1))
            if decision != "open":
                rejected += decision == "different"
                used += look
                break
    return rejected / RUNS, used / RUNS


@pytest.fixture(scope="module")
def design() -> Design:
    return make_design(P, 0.15, 0.05, 5000, rng())


def test_the_design_asks_for_quarters_of_what_its_distance_takes(design: Design) -> None:
    assert len(design.looks) == len(LOOKS)
    assert [look / design.looks[-1] for look in design.looks] == pytest.approx(LOOKS, rel=0.02)
    finer = make_design(P, 0.075, 0.05, 5000, rng())
    assert 3 < finer.looks[-1] / design.looks[-1] < 5  # half the distance takes four times the samples
    assert make_design(P, 0.001, 0.05, 300, rng()).looks[-1] == 300


def test_a_good_source_passes_and_ends_early(design: Design) -> None:
    rejected, used = outcomes(list(P.values()), design)
    assert rejected < 0.05 + 5 * np.sqrt(0.05 * 0.95 / RUNS)
    assert used < 0.65 * design.looks[-1]


@pytest.mark.parametrize("direction", [(1, -1, 0, 0, 0), (1, 0, -0.5, -0.3, -0.2), (-1, 0.25, 0.25, 0.25, 0.25)])
def test_a_source_at_the_stated_distance_is_found_with_the_stated_power(
    direction: Sequence[float], design: Design
) -> None:
    truth = [p + 0.15 * d for p, d in zip(P.values(), direction, strict=True)]
    rejected, _ = outcomes(truth, design)
    assert rejected > 0.9 - 5 * np.sqrt(0.9 * 0.1 / RUNS)


def test_a_grossly_wrong_source_is_rejected_at_the_first_look(design: Design) -> None:
    rejected, used = outcomes([0.05, 0.1, 0.15, 0.3, 0.4], design)
    assert (rejected, used) == (1.0, design.looks[0])


def test_a_look_rejects_at_its_share_of_the_level(design: Design) -> None:
    """Each look at the whole level would make four times the false alarms."""
    size = design.looks[0]
    bins = make_bins(P, size)
    expected = [round(p * size) for p in bins.probabilities]
    found = {}
    for moved in range(size // 4):
        counts = np.array([expected[0] + moved, expected[1] - moved, *expected[2:]])
        decision, p = decide(counts, bins.probabilities, design, is_last=True, rng=rng())
        found[p] = decision
    between = [decision for p, decision in found.items() if design.alpha_per_look < p <= design.alpha]
    assert between and set(between) == {"consistent"}


@pytest.mark.parametrize("alpha", [0.001, 2 * LEAST_ALPHA])
def test_a_small_level_still_rejects_what_is_grossly_wrong(alpha: float) -> None:
    """No p-value is below one over the draws of the null distribution, so a small level needs many of them."""
    bins = make_bins(P, 400)
    counts = bins.count(rng().choice(list(P), size=400, p=[0.05, 0.1, 0.15, 0.3, 0.4]).tolist())
    decision, p = decide(counts, bins.probabilities, Design(0.15, alpha, (400,) * len(LOOKS)), is_last=True, rng=rng())
    assert (decision, p <= alpha / len(LOOKS)) == ("different", True)


def test_each_source_is_drawn_no_further_than_its_tests_need(design: Design) -> None:
    source = Source("a", EndpointRequest("a", 5, 3), P, 7, {7: 0.5, 8: 0.5}, (2,))
    asked: list[tuple[int, int]] = []

    def draw_more(start: int, stop: int) -> list[tuple[int, int | None]]:
        asked.append((start, stop))
        firsts = rng(start).choice(list(P), size=stop - start, p=list(P.values()))
        seconds = rng(start + 1).choice([7, 8], size=stop - start)
        return [(int(first), int(second)) for first, second in zip(firsts, seconds, strict=True)]

    pairs, tests = sample_and_test(source, design, draw_more, rng())
    assert [(test.position, test.decision, test.draft_len) for test in tests] == [
        (0, "consistent", 3),
        (1, "consistent", 3),
    ]
    assert asked == list(zip((0, *design.looks), design.looks[: len(asked)], strict=False))
    assert len(pairs) == asked[-1][1] and {test.num_looks for test in tests} >= {len(asked)}
    assert tests[0].num_samples == design.looks[tests[0].num_looks - 1]
    after_head = [pair for pair in pairs[: design.looks[tests[1].num_looks - 1]] if pair[0] == source.head]
    assert tests[1].num_samples == len(after_head)


def test_a_position_with_one_possible_token_is_not_tested(design: Design) -> None:
    source = Source("a", EndpointRequest("a", 5, 0), {7: 1.0}, 7, P, (2,))
    _, tests = sample_and_test(source, design, lambda start, stop: [(7, 8)] * (stop - start), rng())
    assert [(test.position, test.decision) for test in tests] == [(1, "different")]
