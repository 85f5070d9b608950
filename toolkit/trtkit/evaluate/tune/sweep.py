"""The sweep of `trtkit tune`: every load in turn, inside a budget of time. The clock is injected; knows no server."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from trtkit.errors import InputError
from trtkit.evaluate.bench.load import Timer
from trtkit.evaluate.bench.plan import BenchPrompt, Load, measure_load, tag_prompt
from trtkit.evaluate.endpoints.endpoint import Answered, AsyncEndpoint
from trtkit.evaluate.oracle.record import SkippedPrompt
from trtkit.evaluate.tune.halving import OFF, Halving
from trtkit.progress import OnProgress, Progress, silent

_REQUESTS_PER_SLOT = 2
_LEAST_REQUESTS = 4


@dataclass(frozen=True)
class TunePlan:
    """draft_lens: the candidates besides off. budget_s: for the whole sweep. prompts are repeated as needed, each with
    a number before it when cold, so that no arm finds the prefix that another one left; skipped cannot be sent."""

    draft_lens: tuple[int, ...]
    concurrencies: tuple[int, ...]
    prompts: tuple[BenchPrompt, ...]
    budget_s: float
    cold: bool = True
    skipped: tuple[SkippedPrompt, ...] = ()


@dataclass(frozen=True)
class TunedLevel:
    """One load and its contest; is_complete says that the budget did not cut it short."""

    concurrency: int
    halving: Halving
    is_complete: bool


class Sweep:
    """Runs the contests one load after another; what a load leaves of its share of the time is the next one's."""

    def __init__(self, endpoint: AsyncEndpoint, plan: TunePlan, timer: Timer, on_progress: OnProgress = silent) -> None:
        self._endpoint = endpoint
        self._plan = plan
        self._timer = timer
        self._on_progress = on_progress
        self._tags = itertools.count()
        self._started_ns = timer.now_ns()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the sweep began."""
        return (self._timer.now_ns() - self._started_ns) / 1e9

    async def run(self) -> list[TunedLevel]:
        """Every load. A load whose first rung no longer fits the budget has no results.

        Raises ServerError when the deployment answers with an error, InputError when it has nothing to say.
        """
        levels = []
        for number, concurrency in enumerate(self._plan.concurrencies):
            left_s = self._plan.budget_s - self.elapsed_s
            share_s = left_s / (len(self._plan.concurrencies) - number)
            levels.append(await self._contest(concurrency, self.elapsed_s + share_s))
        return levels

    async def _contest(self, concurrency: int, until_s: float) -> TunedLevel:
        first_requests = max(_LEAST_REQUESTS, _REQUESTS_PER_SLOT * concurrency)
        halving = Halving(self._plan.draft_lens, first_requests)
        if self.elapsed_s >= until_s:
            return TunedLevel(concurrency, halving, False)
        _, warm_ns = await self._measure(OFF, concurrency, self._prompts(0, concurrency))
        expected_s = warm_ns / 1e9 / concurrency * first_requests * len(halving.arms)
        while rung := halving.rung():
            if self.elapsed_s + expected_s > until_s:
                return TunedLevel(concurrency, halving, False)
            prompts = self._prompts(halving.num_sent, halving.num_requests)
            started_s = self.elapsed_s
            for draft_len in rung:
                halving.arms[draft_len].add(*await self._measure(draft_len, concurrency, prompts))
            if not halving.arms[OFF].tokens_per_s():
                raise InputError(
                    "the deployment answers these prompts with no token, so there is no speed to compare",
                    "give other prompts with --prompts",
                    code="TUNE",
                )
            halving.finish_rung()
            expected_s = 2 * (self.elapsed_s - started_s) * len(halving.rung()) / len(rung)
        return TunedLevel(concurrency, halving, True)

    async def _measure(
        self, draft_len: int, concurrency: int, prompts: Sequence[BenchPrompt]
    ) -> tuple[list[Answered], int]:
        name = f"K={draft_len}" if draft_len else "plain"
        stage = f"{name} at {concurrency} of {self._plan.budget_s:g} s"
        self._on_progress(Progress(stage, round(self.elapsed_s), round(self._plan.budget_s), "seconds"))
        sent = [tag_prompt(prompt, next(self._tags)) if self._plan.cold else prompt for prompt in prompts]
        load = Load("speculative" if draft_len else "target", draft_len, concurrency)
        return await measure_load(self._endpoint, load, sent, self._timer)

    def _prompts(self, start: int, count: int) -> list[BenchPrompt]:
        return list(itertools.islice(itertools.cycle(self._plan.prompts), start, start + count))
