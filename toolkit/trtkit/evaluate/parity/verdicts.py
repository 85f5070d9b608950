"""Three verdicts on a deployed answer: identical, near-tie, different. Pure: ids and margins in, a comparison out."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trtkit.evaluate.endpoints.endpoint import Generation
from trtkit.evaluate.oracle.record import OracleStep, RecordedAnswer, RecordHeader
from trtkit.evaluate.oracle.scored_token import ScoredToken
from trtkit.evaluate.oracle.tolerance import LogitPair, NumericProfile, near_tie_tolerance

Verdict = Literal["identical", "near-tie", "different"]
_BY_GRAVITY: tuple[Verdict, ...] = ("identical", "near-tie", "different")


@dataclass(frozen=True)
class Divergence:
    """The first place where two answers part.

    margin is the oracle's own logit difference between the two tokens; margin_is_bound says that the deployed token
    was not among the recorded ones, so that the true margin is at least this one. oracle_token is None where the
    deployment went on past the oracle's last token, deployed_token where it stopped short without an end token.
    """

    position: int
    oracle_token: int | None
    deployed_token: int | None
    margin: float
    margin_is_bound: bool
    tolerance: float


@dataclass(frozen=True)
class Comparison:
    """A verdict, the number of tokens that agree, and the divergence unless the answers are identical.

    prompt_lengths is (oracle's, deployment's) where the deployment made another number of tokens of the prompt: then
    the two were asked different things, and the verdict is different whatever they answered. num_near_ties counts the
    near-ties of the whole deployed answer where the oracle followed it (replay.py), else it is None.
    """

    verdict: Verdict
    num_agreeing_tokens: int
    divergence: Divergence | None = None
    prompt_lengths: tuple[int, int] | None = None
    num_near_ties: int | None = None


@dataclass(frozen=True)
class Referee:
    """Judges deployed answers against one record, for a deployment of the given numerics."""

    header: RecordHeader
    profile: NumericProfile

    def compare(self, answer: RecordedAnswer, got: Generation, max_new_tokens: int) -> Comparison:
        """Compare a deployed answer to at most max_new_tokens with the recorded one, cut to that length.

        An end token may be reported or left out: an answer shorter than max_new_tokens has ended. Which of several
        end tokens was chosen makes no difference.
        """
        comparison = self._compare_tokens(answer, got.token_ids, max_new_tokens)
        lengths = (len(answer.prompt_ids), got.num_prompt_tokens)
        if lengths[1] is None or lengths[0] == lengths[1]:
            return comparison
        return replace(comparison, verdict="different", prompt_lengths=(lengths[0], lengths[1]))

    def _compare_tokens(self, answer: RecordedAnswer, deployed: Sequence[int], max_new_tokens: int) -> Comparison:
        expected = self.normalized(answer.token_ids[:max_new_tokens], max_new_tokens)
        got = self.normalized(deployed, max_new_tokens)
        agreeing = _common_prefix(expected, got)
        if agreeing == len(expected) == len(got):
            return Comparison("identical", agreeing)
        if agreeing in (len(expected), len(got)):
            return Comparison("different", agreeing, _length_difference(agreeing, expected, got))
        divergence = self._judge(answer.steps[agreeing], agreeing, got[agreeing])
        verdict: Verdict = "near-tie" if divergence.margin <= divergence.tolerance else "different"
        return Comparison(verdict, agreeing, divergence)

    def normalized(self, token_ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """Cut after the first end token, written as the first of end_ids; add it where it was left out."""
        ends = self.header.end_ids
        stop = next((i for i, token in enumerate(token_ids) if token in ends), None)
        kept = list(token_ids if stop is None else token_ids[:stop])
        if ends and (stop is not None or len(kept) < max_new_tokens):
            kept.append(ends[0])
        return kept

    def follow(self, comparison: Comparison, scored: Sequence[ScoredToken]) -> Comparison:
        """Judge every token of a deployed answer, not only the first that differs from the recorded one.

        Different at the first token whose margin rounding does not explain. A near-tie stays one; another answer is
        identical when each of its tokens is the oracle's own choice.
        """
        others = [(position, token) for position, token in enumerate(scored) if token.gap > 0]
        divergences = [self._judge_scored(position, token) for position, token in others]
        unexplained = next((found for found in divergences if not found.margin <= found.tolerance), None)
        if unexplained is not None:
            return replace(comparison, verdict="different", divergence=unexplained, num_near_ties=len(divergences))
        if comparison.verdict == "near-tie":
            return replace(comparison, num_near_ties=len(divergences))
        if not divergences:
            return Comparison("identical", len(scored), num_near_ties=0)
        return Comparison("near-tie", divergences[0].position, divergences[0], num_near_ties=len(divergences))

    def _judge(self, step: OracleStep, position: int, deployed_token: int) -> Divergence:
        """Margin and tolerance between the oracle's token and the deployed one, at their first difference."""
        rank = self._rank(step, deployed_token)
        gap = step.gaps[-1 if rank is None else rank]
        distance = 2 * self.header.max_row_norm if rank is None else step.distances[rank]
        token = ScoredToken(step.token_ids[0], deployed_token, gap, step.best_logit, step.state_norm, distance)
        return replace(self._judge_scored(position, token), margin_is_bound=rank is None)

    def _judge_scored(self, position: int, token: ScoredToken) -> Divergence:
        if math.isinf(token.gap):  # no token of the vocabulary: no rounding makes one of it
            return Divergence(position, token.oracle_token, token.token, token.gap, False, 0.0)
        magnitude = max(abs(token.best_logit), abs(token.best_logit - token.gap))
        tolerance = near_tie_tolerance(self.profile, LogitPair(token.state_norm, token.distance, magnitude))
        return Divergence(position, token.oracle_token, token.token, token.gap, False, tolerance)

    def _rank(self, step: OracleStep, token: int) -> int | None:
        """Where a token stands among the recorded ones; for an end token the best of the end tokens."""
        alike = self.header.end_ids if token in self.header.end_ids else (token,)
        return next((i for i, candidate in enumerate(step.token_ids) if candidate in alike), None)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The gravest of several verdicts; identical when there is none."""
    return max(verdicts, key=_BY_GRAVITY.index, default="identical")


def _length_difference(position: int, expected: Sequence[int], got: Sequence[int]) -> Divergence:
    """One answer is a proper prefix of the other: no rounding explains that."""
    oracle_token, deployed_token = (ids[position] if position < len(ids) else None for ids in (expected, got))
    return Divergence(position, oracle_token, deployed_token, math.inf, False, 0.0)


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
