"""Two models on one GPU: solved fractions give each its share in load order; what does not fit names its shortfall."""

import pytest
from trtkit.planning.memory import RUNTIME_BYTES, ModelShare, fit

GB = 10**9
TARGET = ModelShare(weight_bytes=30 * GB, buffer_bytes=GB, kv_bytes_per_sequence=GB, tokens_per_sequence=1024)
DRAFT = ModelShare(weight_bytes=2 * GB, buffer_bytes=GB, kv_bytes_per_sequence=GB // 10, tokens_per_sequence=1024)


def left_after_loading(memory_bytes: int, shares: tuple[ModelShare, ...], fractions: tuple[float, ...]) -> list[int]:
    """KV bytes that the runtime gives each model when they load one after another."""
    free, given = memory_bytes, []
    for share, fraction in zip(shares, fractions, strict=True):
        free -= share.weight_bytes + share.buffer_bytes + RUNTIME_BYTES
        given.append(int(free * fraction))
        free -= given[-1]
        assert free >= 0
    return given


def test_one_model_takes_what_is_left() -> None:
    assert fit(80 * GB, (TARGET,)).sequences == 45  # (80 - 32) * 0.95


def test_the_fractions_give_both_models_room_for_the_same_sequences() -> None:
    solution = fit(80 * GB, (TARGET, DRAFT))
    given = left_after_loading(80 * GB, (TARGET, DRAFT), solution.fractions)
    for share, room in zip((TARGET, DRAFT), given, strict=True):
        assert room >= solution.sequences * share.kv_bytes_per_sequence


def test_fractions_of_nine_tenths_each_would_leave_nothing_for_the_draft() -> None:
    with pytest.raises(AssertionError):
        left_after_loading(80 * GB, (TARGET, DRAFT), (0.97, 0.9))


def test_token_limits_are_whole_sequences() -> None:
    solution = fit(80 * GB, (TARGET, DRAFT))
    assert solution.max_tokens == (solution.sequences * 1024, solution.sequences * 1024)


def test_what_does_not_fit_says_how_much_is_lacking() -> None:
    solution = fit(34 * GB, (TARGET, DRAFT))
    assert solution.sequences == 0
    assert fit(34 * GB + solution.shortfall_bytes * 100 // 95 + 100, (TARGET, DRAFT)).sequences == 1
