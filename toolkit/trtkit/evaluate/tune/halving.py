"""Successive halving of draft lengths at one load: who is measured next, how long, and what stands. Pure; no clock.

Every rung gives the plain target and each length that is still in twice the requests of the rung before, and keeps the
better half of the lengths (Jamieson and Talwalkar, Non-stochastic Best Arm Identification, 2016).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trtkit.evaluate.bench.bootstrap import Interval, speedup_interval
from trtkit.evaluate.bench.latency import timing_of
from trtkit.evaluate.bench.speedup import WORTHWHILE
from trtkit.evaluate.endpoints.endpoint import Answered

OFF = 0


@dataclass
class Arm:
    """One draft length and what was measured with it so far; one entry of busy_ns per rung."""

    draft_len: int
    answers: list[Answered] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    busy_ns: list[int] = field(default_factory=list)

    def add(self, answers: Sequence[Answered], busy_ns: int) -> None:
        """Take up what one rung brought."""
        self.answers += answers
        self.tokens.append(sum(len(answered.generation.token_ids) for answered in answers))
        self.busy_ns.append(busy_ns)

    def tokens_per_s(self, num_rungs: int | None = None) -> float:
        """Throughput over the first rungs, or over all of them."""
        busy_ns = sum(self.busy_ns[:num_rungs])
        return sum(self.tokens[:num_rungs]) / (busy_ns / 1e9) if busy_ns else 0.0


@dataclass(frozen=True)
class ArmResult:
    """What one draft length gained over the plain target on the same prompts and in the same rungs."""

    draft_len: int
    num_rungs: int
    speedup: float
    speedup_interval: Interval


class Halving:
    """The draft lengths of one load. `rung` says what to measure next; `add` takes it; empty rungs mean the end."""

    def __init__(self, draft_lens: Sequence[int], first_requests: int) -> None:
        self.arms = {draft_len: Arm(draft_len) for draft_len in (OFF, *dict.fromkeys(draft_lens))}
        self._first_requests = first_requests
        self._standing = [draft_len for draft_len in self.arms if draft_len != OFF]
        self._num_rungs = 0
        self._is_decided = False

    @property
    def num_requests(self) -> int:
        """Requests of each arm in the next rung."""
        return self._first_requests << self._num_rungs

    @property
    def num_sent(self) -> int:
        """Requests of an arm that was in every rung so far."""
        return self.num_requests - self._first_requests

    def rung(self) -> list[int]:
        """The draft lengths to measure next, the plain target among them, in an order that turns with every rung."""
        if self._is_decided:
            return []
        order = [OFF, *self._standing]
        return order if self._num_rungs % 2 == 0 else order[::-1]

    def finish_rung(self) -> None:
        """Drop the worse half. The last one left has one more rung; one that surely loses has not."""
        self._num_rungs += 1
        ranked = sorted((self.result(k) for k in self._standing), key=lambda result: -result.speedup)
        was_last = len(ranked) == 1
        self._standing = [result.draft_len for result in ranked[: (len(ranked) + 1) // 2]]
        self._is_decided = was_last or ranked[0].speedup_interval[1] < 1

    def result(self, draft_len: int) -> ArmResult:
        """One length against the plain target, over the rungs that both were in."""
        arm, plain = self.arms[draft_len], self.arms[OFF]
        num_rungs = len(arm.busy_ns)
        speedup = arm.tokens_per_s() / plain.tokens_per_s(num_rungs)
        return ArmResult(draft_len, num_rungs, speedup, _interval(arm, plain, speedup))

    @property
    def results(self) -> list[ArmResult]:
        """Every length that was measured, the plain target left out."""
        return [self.result(k) for k, arm in self.arms.items() if k != OFF and arm.busy_ns]

    @property
    def recommended(self) -> int | None:
        """The best of the lengths that went furthest; 0 where it is not worthwhile; None before the first rung."""
        if not self.results:
            return None
        furthest = max(result.num_rungs for result in self.results)
        best = max((r for r in self.results if r.num_rungs == furthest), key=lambda result: result.speedup)
        return best.draft_len if best.speedup >= WORTHWHILE else OFF


def _interval(arm: Arm, plain: Arm, speedup: float) -> Interval:
    """The interval of the quotient of tokens per second under way, scaled to the speed-up that was measured: the idle
    end of a closed loop belongs to the load and not to chance."""
    one, other = _per_request(arm), _per_request(plain)
    count = len(one[0])
    sums = [sum(part[:count]) for part in (*one, *other)]
    if not all(sums):
        return speedup, speedup
    scale = speedup / (sums[0] / sums[1] / (sums[2] / sums[3]))
    low, high = speedup_interval(one, other)
    return low * scale, high * scale


def _per_request(arm: Arm) -> tuple[list[float], list[float]]:
    """(tokens, milliseconds) of each request; one without tokens took no time that counts."""
    timings = [timing_of(answered.generation) for answered in arm.answers]
    return [float(t.num_tokens) if t else 0.0 for t in timings], [t.e2e_ms if t else 0.0 for t in timings]
