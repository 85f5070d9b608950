"""The adaptive draft length: long while drafts are accepted, off when not, and never dear. Simulated clocks."""

import random
from dataclasses import dataclass

import pytest
from trtkit.acceptance import Acceptance
from trtkit.draft_length import AdaptiveDraftLength, DraftLength, Experience, FixedDraftLength

DRAFT_NS, VERIFY_NS, PLAIN_NS = 1_000, 10_000, 9_000


def measured(max_draft_len: int, *, tokens: int = 20_000) -> AdaptiveDraftLength:
    """One that knows all times, from a stretch long enough that its allowance is not what decides."""
    length = AdaptiveDraftLength(max_draft_len)
    length.observe_plain(1, 100 * PLAIN_NS)
    length.observe_plain(tokens, tokens * PLAIN_NS)
    observe(length, 2, 1)
    return length


def observe(length: AdaptiveDraftLength, drafted: int, accepted: int, times: int = 1) -> None:
    for _ in range(times):
        outcome = Acceptance(drafted, tuple(range(accepted + 1)))
        length.observe_draft(outcome, drafted * DRAFT_NS, VERIFY_NS)


def test_it_begins_with_the_target_alone_then_tries_a_short_draft() -> None:
    length = AdaptiveDraftLength(5)
    assert (length.next(), length.plain_tokens()) == (0, 1), "the prompt's step says nothing about a token's time"
    length.observe_plain(1, 100 * PLAIN_NS)
    assert (length.next(), length.plain_tokens()) == (0, 8)
    length.observe_plain(8, 8 * PLAIN_NS)
    assert length.next() == 2


def test_accepted_drafts_lead_to_the_maximum() -> None:
    length = measured(5)
    observe(length, 5, 5, times=10)
    assert length.next() == 5


def test_rejected_drafts_switch_it_off() -> None:
    length = measured(5)
    observe(length, 5, 0, times=20)
    length.next()  # the probe that follows a stretch without drafts
    assert length.next() == 0


def test_in_between_it_chooses_a_length_in_between() -> None:
    length = measured(8)
    observe(length, 8, 1, times=10)
    assert 0 < length.next() < 8


def test_a_slow_draft_is_switched_off_although_half_of_it_is_accepted() -> None:
    length = measured(4)
    for _ in range(20):
        length.observe_draft(Acceptance(4, (1, 2, 3)), 4 * VERIFY_NS, VERIFY_NS)
    length.next()  # the probe that follows a stretch without drafts
    assert length.next() == 0


def test_while_it_is_off_one_short_draft_follows_every_stretch() -> None:
    length = measured(5)
    observe(length, 5, 0, times=20)
    length.next()
    length.observe_plain(32, 32 * PLAIN_NS)
    assert length.plain_tokens() == 32
    assert [length.next(), length.next()] == [1, 0]


def test_it_comes_back_when_probes_are_accepted() -> None:
    length = measured(5)
    observe(length, 5, 0, times=10)
    for _ in range(20):
        length.observe_plain(32, 32 * PLAIN_NS)
        if length.next() == 1:
            observe(length, 1, 1)
    assert length.next() > 1


def test_a_length_that_could_cost_too_much_is_shortened() -> None:
    length = AdaptiveDraftLength(8, Experience(0.95, DRAFT_NS, VERIFY_NS, PLAIN_NS))
    # The allowance is 1.5 % of 64 tokens of 9,000 ns: 8,640 ns. K rejected drafts cost K + 10 - 9 thousand.
    assert length.next() == 7
    observe(length, 4, 0)
    assert length.experience.accept is not None and length.experience.accept > 0.8, "it still expects a gain"
    assert length.next() == 2
    observe(length, 2, 0)
    assert length.next() == 0


def test_the_next_answer_begins_with_what_this_one_learned() -> None:
    length = measured(5)
    observe(length, 5, 0, times=20)
    following = AdaptiveDraftLength(5, length.experience)
    assert following.next() == 0
    assert following.experience.accept == length.experience.accept


def test_the_prefill_of_the_next_answer_is_left_out_of_the_times() -> None:
    length = measured(5)
    observe(length, 5, 5, times=5)
    following = AdaptiveDraftLength(5, length.experience)
    following.observe_draft(Acceptance(5, (1, 2, 3, 4, 5, 6)), 5_000 * DRAFT_NS, 500 * VERIFY_NS)
    assert following.next() == 5
    assert following.experience.draft_ns == length.experience.draft_ns
    assert following.experience.warm_ns == pytest.approx(4_995 * DRAFT_NS)


@dataclass(frozen=True)
class Kind:
    """Times in units of a plain token: c a draft token, v a verification, prefill of the draft in each answer."""

    accept: float
    c: float
    v: float = 1.1
    prefill: float = 2.0


NUM_ANSWERS, NUM_TOKENS = 20, 128
OFF = NUM_ANSWERS * NUM_TOKENS


def time_of_answer(kind: Kind, length: DraftLength, rng: random.Random, num_tokens: int = NUM_TOKENS) -> float:
    """The time of one answer in a simulated loop; off takes one unit per token."""
    left, total, has_drafted = num_tokens, 0.0, False
    while left > 0:
        drafted = min(length.next(), left - 1)
        if drafted == 0:
            tokens = min(length.plain_tokens() or left, left)
            length.observe_plain(tokens, tokens * PLAIN_NS)
            left, total = left - tokens, total + tokens
            continue
        accepted = next((i for i in range(drafted) if rng.random() >= kind.accept), drafted)
        drafting = drafted * kind.c + (0 if has_drafted else kind.prefill)
        has_drafted = True
        outcome = Acceptance(drafted, tuple(range(accepted + 1)))
        length.observe_draft(outcome, int(drafting * PLAIN_NS), int(kind.v * PLAIN_NS))
        left, total = left - accepted - 1, total + drafting + kind.v
    return total


def adaptive_times(kinds: list[Kind], num_tokens: int = NUM_TOKENS) -> list[float]:
    rng, times, experience = random.Random(0), [], Experience()
    for kind in kinds:
        length = AdaptiveDraftLength(6, experience)
        times.append(time_of_answer(kind, length, rng, num_tokens))
        experience = length.experience
    return times


def fixed_time(kind: Kind, draft_len: int) -> float:
    rng = random.Random(0)
    return sum(time_of_answer(kind, FixedDraftLength(draft_len), rng) for _ in range(NUM_ANSWERS))


@pytest.mark.parametrize("accept", [0.0, 0.1, 0.3, 0.5])
@pytest.mark.parametrize("c", [0.05, 0.3, 0.7, 1.5])
def test_against_off_it_costs_at_most_three_percent(accept: float, c: float) -> None:
    assert sum(adaptive_times([Kind(accept, c)] * NUM_ANSWERS)) <= 1.03 * OFF


@pytest.mark.parametrize(("num_answers", "num_tokens"), [(1, 7), (3, 7), (1, 40), (2, 96), (5, 96)])
def test_few_or_short_answers_do_not_pay_for_the_first_trial_either(num_answers: int, num_tokens: int) -> None:
    times = adaptive_times([Kind(0.0, 0.2, prefill=0.5)] * num_answers, num_tokens)
    assert sum(times) <= 1.03 * num_answers * num_tokens


def test_texts_that_suit_the_draft_do_not_pay_for_texts_that_do_not() -> None:
    good, bad = Kind(0.9, 0.1, prefill=0.5), Kind(0.0, 0.1, prefill=0.5)
    times = adaptive_times([good, bad] * NUM_ANSWERS)
    assert sum(times[1::2]) <= 1.03 * OFF
    assert sum(times[::2]) <= 0.6 * OFF


@pytest.mark.parametrize(("accept", "c"), [(0.9, 0.1), (0.8, 0.2), (0.7, 0.05), (0.6, 0.05)])
def test_where_drafting_pays_it_gains_nearly_what_the_best_fixed_length_gains(accept: float, c: float) -> None:
    kind = Kind(accept, c)
    best = min(fixed_time(kind, draft_len) for draft_len in range(7))
    assert best < 0.9 * OFF
    assert sum(adaptive_times([kind] * NUM_ANSWERS)) <= 1.08 * best
