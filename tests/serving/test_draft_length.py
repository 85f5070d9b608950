"""The adaptive draft length: long while drafts are accepted, off when they are not, and back."""

from trtkit.acceptance import Acceptance
from trtkit.serving.draft_length import AdaptiveDraftLength

DRAFT_NS, VERIFY_NS, PLAIN_NS = 1_000, 10_000, 9_000


def measured(max_draft_len: int, **options: int) -> AdaptiveDraftLength:
    """One that has prefilled and knows how fast the target is alone."""
    length = AdaptiveDraftLength(max_draft_len, **options)
    length.observe_plain(1, 100 * PLAIN_NS)
    length.observe_plain(8, 8 * PLAIN_NS)
    return length


def observe(length: AdaptiveDraftLength, drafted: int, accepted: int, times: int = 1) -> None:
    for _ in range(times):
        outcome = Acceptance(drafted, tuple(range(accepted + 1)))
        length.observe_draft(outcome, drafted * DRAFT_NS, VERIFY_NS)


def test_it_begins_with_the_maximum() -> None:
    assert AdaptiveDraftLength(5).next() == 5


def test_accepted_drafts_keep_it_at_the_maximum() -> None:
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
    length = AdaptiveDraftLength(4)
    for _ in range(20):
        length.observe_draft(Acceptance(4, (1, 2, 3)), 4 * VERIFY_NS, VERIFY_NS)
    length.observe_plain(10, 10 * PLAIN_NS)
    length.next()  # the probe that follows a stretch without drafts
    assert length.next() == 0


def test_while_it_is_off_one_short_draft_follows_every_stretch() -> None:
    length = measured(5, probe_tokens=16)
    observe(length, 5, 0, times=20)
    length.observe_plain(16, 16 * PLAIN_NS)
    assert length.plain_tokens() == 16
    assert [length.next(), length.next()] == [1, 0]


def test_it_comes_back_when_probes_are_accepted() -> None:
    length = measured(5)
    observe(length, 5, 0, times=20)
    for _ in range(20):
        length.observe_plain(32, 32 * PLAIN_NS)
        if length.next() == 1:
            observe(length, 1, 1)
    assert length.next() > 1


def test_the_prefill_of_the_prompt_is_not_taken_for_the_time_of_a_step() -> None:
    length = AdaptiveDraftLength(4)
    length.observe_draft(Acceptance(4, (1, 2, 3)), 4_000 * DRAFT_NS, 2 * VERIFY_NS)
    observe(length, 4, 2)
    assert (length.next(), length.plain_tokens()) == (0, 8), "a first short stretch without drafts"
    length.observe_plain(8, 8 * PLAIN_NS)
    assert length.next() > 1


def test_the_next_answer_begins_with_what_this_one_learned() -> None:
    length = measured(5)
    observe(length, 5, 0, times=20)
    following = AdaptiveDraftLength(5, length.experience)
    assert following.next() == 0
    assert following.experience == length.experience


def test_the_prefill_of_the_next_answer_is_left_out_too() -> None:
    length = measured(5)
    observe(length, 5, 5, times=5)
    following = AdaptiveDraftLength(5, length.experience)
    following.observe_draft(Acceptance(5, (1, 2, 3, 4, 5, 6)), 5_000 * DRAFT_NS, 500 * VERIFY_NS)
    assert following.next() == 5
