"""Two models on one GPU: solved limits give each its share in any load order; what does not fit names its shortfall."""

from dataclasses import replace

import pytest
from trtkit.planning.memory import RUNTIME_BYTES, Fit, ModelShare, fit

GB = 10**9
KIB = 1024
TARGET = ModelShare(30 * GB, GB, kv_bytes_per_sequence=1024 * 1000 * KIB, tokens_per_sequence=1024)
DRAFT = ModelShare(2 * GB, GB, kv_bytes_per_sequence=1024 * 100 * KIB, tokens_per_sequence=1024)
SHARES = (TARGET, DRAFT)


def left_after_loading(memory_bytes: int, solution: Fit, order: tuple[int, ...]) -> dict[int, int]:
    """Tokens that the runtime gives each model when they load one after another: the smaller of both limits."""
    free, given = memory_bytes, {}
    for number in order:
        share = SHARES[number]
        free -= share.weight_bytes + share.buffer_bytes + RUNTIME_BYTES
        per_token = share.kv_bytes_per_sequence // share.tokens_per_sequence
        given[number] = min(int(free * solution.fractions[number]) // per_token, solution.max_tokens[number])
        free -= given[number] * per_token
        assert free >= 0, "the next model finds no memory"
    return given


def test_one_model_takes_what_is_left() -> None:
    assert fit(80 * GB, (TARGET,)).sequences == 43  # (80 - 32) * 0.95 / 1.048576


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_both_models_get_room_for_the_same_sequences_whichever_loads_first(order: tuple[int, ...]) -> None:
    solution = fit(80 * GB, SHARES)
    given = left_after_loading(80 * GB, solution, order)
    assert solution.sequences > 30
    assert given == dict(enumerate(solution.max_tokens))
    assert all(0 < fraction < 1 for fraction in solution.fractions)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_fractions_of_nine_tenths_each_would_leave_the_second_too_little(order: tuple[int, ...]) -> None:
    solution = fit(80 * GB, SHARES)
    greedy = replace(solution, fractions=(0.97, 0.97), max_tokens=(10**9, 10**9))
    try:
        second = left_after_loading(80 * GB, greedy, order)[order[1]]
    except AssertionError:
        return
    assert second < solution.max_tokens[order[1]]


def test_token_limits_are_whole_sequences() -> None:
    solution = fit(80 * GB, (TARGET, DRAFT))
    assert solution.max_tokens == (solution.sequences * 1024, solution.sequences * 1024)


def test_what_does_not_fit_says_how_much_is_lacking() -> None:
    solution = fit(34 * GB, (TARGET, DRAFT))
    assert solution.sequences == 0
    assert fit(34 * GB + solution.shortfall_bytes * 100 // 95 + 100, (TARGET, DRAFT)).sequences == 1
