"""Three verdicts, by token ids: identical, near-tie, different."""

import math

import pytest
from parity_samples import END, answer, deployed, header, step
from trtkit.evaluate.oracle.scored_token import ScoredToken
from trtkit.evaluate.oracle.tolerance import LogitPair, NumericProfile, near_tie_tolerance
from trtkit.evaluate.parity.verdicts import Referee, worst

EXACT = Referee(header(), NumericProfile("float32", 2, 16))
COARSE = Referee(header(), NumericProfile("bfloat16", 2, 16))

# Four tokens; at the third, 12 and 13 are 0.01 apart, elsewhere the runner-up is 5 behind.
ANSWER = answer("a", step(10, 9, 5.0), step(11, 9, 5.0), step(12, 13, 0.01), step(14, 9, 5.0))
ENDED = answer("e", step(10, 9, 5.0), step(END, 9, 5.0))


def test_the_same_tokens_are_identical() -> None:
    assert EXACT.compare(ANSWER, deployed(10, 11, 12, 14), 4).verdict == "identical"


def test_a_margin_within_the_rounding_of_the_dtype_is_a_near_tie() -> None:
    comparison = COARSE.compare(ANSWER, deployed(10, 11, 13, 7), 4)
    assert (comparison.verdict, comparison.num_agreeing_tokens) == ("near-tie", 2)
    found = comparison.divergence
    assert found is not None
    assert (found.position, found.oracle_token, found.deployed_token, found.margin) == (2, 12, 13, 0.01)
    assert found.margin < found.tolerance


def test_the_same_margin_is_a_difference_for_a_finer_dtype() -> None:
    assert EXACT.compare(ANSWER, deployed(10, 11, 13, 7), 4).verdict == "different"


def test_a_large_margin_is_a_difference_for_every_dtype() -> None:
    assert COARSE.compare(ANSWER, deployed(10, 9, 12, 14), 4).verdict == "different"


def test_a_token_that_was_not_recorded_is_at_least_as_far_as_the_last_recorded_one() -> None:
    found = COARSE.compare(ANSWER, deployed(31), 4).divergence
    assert found is not None
    assert (found.margin, found.margin_is_bound) == (5.0, True)


def test_a_token_that_was_not_recorded_is_as_far_off_in_the_head_as_any_two_rows_can_be() -> None:
    profile = NumericProfile("bfloat16", 2, 16)
    near, far = (
        Referee(header(max_row_norm=norm), profile).compare(ANSWER, deployed(31), 4).divergence for norm in (1.0, 3.0)
    )
    assert near is not None and far is not None
    logits = near_tie_tolerance(profile, LogitPair(4.0, 0.0, 10.0))
    assert far.tolerance - logits == pytest.approx(3 * (near.tolerance - logits))
    assert near.tolerance == near_tie_tolerance(profile, LogitPair(4.0, 2.0, 10.0))


def test_only_the_first_tokens_count_when_fewer_are_asked_for() -> None:
    assert EXACT.compare(ANSWER, deployed(10, 11), 2).verdict == "identical"


@pytest.mark.parametrize("token_ids", [(10,), (10, END), (10, END, 7, 7)])
def test_an_end_token_may_be_reported_left_out_or_followed_by_padding(token_ids: tuple[int, ...]) -> None:
    assert EXACT.compare(ENDED, deployed(*token_ids), 4).verdict == "identical"


def test_which_of_several_end_tokens_ended_the_answer_makes_no_difference() -> None:
    referee = Referee(header(end_ids=(END, 3)), EXACT.profile)
    assert referee.compare(ENDED, deployed(10, 3), 4).verdict == "identical"


def test_a_deployment_that_ignores_the_end_is_different() -> None:
    found = EXACT.compare(ENDED, deployed(10, 9, 9, 9), 4).divergence
    assert found is not None
    assert (found.position, found.oracle_token, found.deployed_token) == (1, END, 9)


def test_a_deployment_that_loses_its_last_token_is_different() -> None:
    comparison = COARSE.compare(ANSWER, deployed(10, 11, 12), 4)
    assert comparison.verdict == "different"
    assert comparison.divergence is not None
    assert comparison.divergence.deployed_token == END


def test_a_deployment_that_says_more_than_was_asked_is_different() -> None:
    comparison = COARSE.compare(ANSWER, deployed(10, 11, 12, 14, 15), 4)
    assert comparison.verdict == "different"
    assert comparison.divergence is not None
    assert (comparison.divergence.oracle_token, comparison.divergence.margin) == (None, math.inf)


def test_without_end_tokens_a_short_answer_is_different() -> None:
    endless = Referee(header(end_ids=()), COARSE.profile)
    found = endless.compare(ANSWER, deployed(10, 11, 12), 4).divergence
    assert found is not None
    assert (found.position, found.oracle_token, found.deployed_token) == (3, 14, None)


def test_another_number_of_prompt_tokens_is_different_whatever_was_answered() -> None:
    comparison = EXACT.compare(ANSWER, deployed(10, 11, 12, 14, num_prompt_tokens=3), 4)
    assert (comparison.verdict, comparison.prompt_lengths) == ("different", (2, 3))


def test_the_worst_verdict_decides() -> None:
    assert worst([]) == "identical"
    assert worst(["identical", "near-tie"]) == "near-tie"
    assert worst(["different", "near-tie", "identical"]) == "different"


def scored(*gaps: float) -> list[ScoredToken]:
    return [ScoredToken(10, 10 if gap == 0 else 13, gap, 10.0, 4.0, 1.0) for gap in gaps]


def test_a_near_tie_stays_one_while_rounding_explains_every_later_token() -> None:
    tie = COARSE.compare(ANSWER, deployed(10, 11, 13, 7), 4)
    followed = COARSE.follow(tie, scored(0, 0, 0.01, 0))
    assert (followed.verdict, followed.num_near_ties) == ("near-tie", 1)


def test_a_fault_after_a_near_tie_is_a_difference_at_its_own_place() -> None:
    tie = COARSE.compare(ANSWER, deployed(10, 11, 13, 7), 4)
    followed = COARSE.follow(tie, scored(0, 0, 0.01, 5.0))
    assert (followed.verdict, followed.num_near_ties) == ("different", 2)
    assert followed.divergence is not None
    assert (followed.divergence.position, followed.divergence.margin) == (3, 5.0)


def test_a_margin_that_is_no_number_is_a_difference() -> None:
    tie = COARSE.compare(ANSWER, deployed(10, 11, 13, 7), 4)
    assert COARSE.follow(tie, [ScoredToken(1, 2, math.inf, math.nan, 4.0, 1.0)]).verdict == "different"
