"""The oracle follows a deployed answer: the right scores for the right tokens, one pass per distinct answer."""

from dataclasses import asdict

import pytest
from parity_samples import deployed, header
from tiny import tiny_checkpoint
from trtkit.evaluate.oracle.oracle import Oracle
from trtkit.evaluate.oracle.record import RecordedAnswer
from trtkit.evaluate.oracle.tolerance import NumericProfile
from trtkit.evaluate.parity.check import CheckedCase, CheckResult
from trtkit.evaluate.parity.junit import explain_case
from trtkit.evaluate.parity.replay import follow_near_ties
from trtkit.evaluate.parity.verdicts import Referee

PROMPT = (5, 9, 33, 200, 7)
NUM_TOKENS = 8


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle.load(tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def answer(oracle: Oracle) -> RecordedAnswer:
    steps = list(oracle.answer(PROMPT, NUM_TOKENS, []))
    token_ids = tuple(token for token, _ in steps)
    return RecordedAnswer("p", "g", "key", "text", PROMPT, token_ids, "length", tuple(step for _, step in steps))


def test_its_own_answer_has_no_gaps(oracle: Oracle, answer: RecordedAnswer) -> None:
    scored = oracle.follow(PROMPT, answer.token_ids, ())
    assert [token.oracle_token for token in scored] == list(answer.token_ids)
    assert all(token.gap == 0 for token in scored)
    assert [token.state_norm for token in scored] == pytest.approx([step.state_norm for step in answer.steps], rel=1e-4)


def test_another_token_is_scored_by_the_gap_that_the_record_holds(oracle: Oracle, answer: RecordedAnswer) -> None:
    step = answer.steps[3]
    token = oracle.follow(PROMPT, (*answer.token_ids[:3], step.token_ids[1]), ())[3]
    assert token.gap == pytest.approx(step.gaps[1], abs=1e-4)
    assert token.distance == pytest.approx(step.distances[1], rel=1e-4)


def test_the_best_of_several_end_tokens_stands_for_them(oracle: Oracle, answer: RecordedAnswer) -> None:
    runner_up, last = answer.steps[0].token_ids[1], answer.steps[0].token_ids[-1]
    assert oracle.follow(PROMPT, (last,), (last, runner_up))[0].token == runner_up


@pytest.mark.parametrize("outside", [-1, 100_000])
def test_an_id_that_is_no_token_is_different_and_said(outside: int, oracle: Oracle, answer: RecordedAnswer) -> None:
    position = min(range(1, NUM_TOKENS - 2), key=lambda i: answer.steps[i].margin)
    referee = Referee(header(end_ids=()), NumericProfile("bfloat16", 3, 64, conditioning=3.0))
    start = (*answer.token_ids[:position], answer.steps[position].token_ids[1])
    got = deployed(*start, outside, *answer.token_ids[len(start) + 1 :])
    case = CheckedCase("p", "g", 0, "cold", referee.compare(answer, got, NUM_TOKENS), got)
    assert case.comparison.verdict == "near-tie"
    (followed,) = follow_near_ties(CheckResult((case,)), [answer], oracle, referee, NUM_TOKENS).cases
    divergence = followed.comparison.divergence
    assert followed.comparison.verdict == "different" and divergence is not None
    assert (divergence.position, divergence.deployed_token, divergence.tolerance) == (position + 1, outside, 0.0)
    said = explain_case({"prompt_lengths": None, "divergence": {**asdict(divergence), "margin": None}})
    assert said == f"at token {position + 1} the deployment says {outside}, which is no token of the model"


def test_the_rest_of_a_near_tie_is_judged(oracle: Oracle, answer: RecordedAnswer) -> None:
    """Two deployed answers leave the record at its closest call; one then follows the oracle, the other does not."""
    position = min(range(1, NUM_TOKENS - 2), key=lambda i: answer.steps[i].margin)
    # So coarse a profile that the closest call is a near-tie, and not everything is.
    referee = Referee(header(end_ids=()), NumericProfile("bfloat16", 3, 64, conditioning=3.0))
    start = (*answer.token_ids[:position], answer.steps[position].token_ids[1])
    rest = tuple(token for token, _ in oracle.answer((*PROMPT, *start), NUM_TOKENS - len(start), []))
    faithful, faulty = (*start, *rest), (*start, *(token ^ 1 for token in rest))
    cases = []
    for token_ids in (faithful, faulty, faithful):
        comparison = referee.compare(answer, deployed(*token_ids), NUM_TOKENS)
        assert comparison.verdict == "near-tie", comparison
        cases.append(CheckedCase("p", "g", 0, "cold", comparison, deployed(*token_ids)))
    followed = follow_near_ties(CheckResult(tuple(cases)), [answer], oracle, referee, NUM_TOKENS)
    assert [case.comparison.verdict for case in followed.cases] == ["near-tie", "different", "near-tie"]
    assert followed.cases[0].comparison.num_near_ties == 1
