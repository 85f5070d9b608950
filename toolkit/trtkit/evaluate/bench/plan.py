"""Runs the bench: which loads are put on a deployment, in which order. The clock is injected; latency.py adds up."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trtkit.evaluate.bench.latency import RunStats, summarize_run
from trtkit.evaluate.bench.load import Timer, closed_loop, open_loop, poisson_times
from trtkit.evaluate.endpoints.endpoint import Answered, AsyncEndpoint, EndpointRequest
from trtkit.evaluate.oracle.record import SkippedPrompt
from trtkit.progress import OnProgress, Progress, silent

Mode = Literal["target", "speculative", "oracle"]


@dataclass(frozen=True)
class Load:
    """One kind of load: the mode, the draft length (0 is speculation off), and when requests are sent.

    A closed loop keeps `concurrency` requests under way. An open loop sends them whatever is still under way: at
    Poisson arrivals of `rate` per second, or, with neither, at the times of the prompts themselves.
    """

    mode: Mode
    draft_len: int
    concurrency: int | None = 1
    rate: float | None = None


@dataclass(frozen=True)
class BenchPrompt:
    """One request of each round: its class, the longest answer, and in a trace its time in seconds from the first."""

    text: str
    max_new_tokens: int
    group: str = "prompts"
    at_s: float = 0.0


@dataclass(frozen=True)
class BenchPlan:
    """What is sent. Each load gets every prompt once a round, and `rounds` rounds take turns between the loads.

    cold makes every text new to the deployment's prefix cache by a tag before it; otherwise the texts are sent as they
    are, and all but the first find their prefix. seed decides the Poisson arrivals. skipped cannot be sent.
    """

    loads: tuple[Load, ...]
    prompts: tuple[BenchPrompt, ...]
    rounds: int = 2
    warmup_requests: int = 2
    cold: bool = True
    seed: int = 0
    skipped: tuple[SkippedPrompt, ...] = ()

    @property
    def num_requests(self) -> int:
        """Requests of the whole bench, warm-up included."""
        return len(self.loads) * (min(self.warmup_requests, len(self.prompts)) + self.rounds * len(self.prompts))


@dataclass(frozen=True)
class BenchRun:
    """One load and its figures over all rounds, also by class of prompt; None when no answer had a token."""

    load: Load
    stats: RunStats | None
    groups: Mapping[str, RunStats | None] = field(default_factory=dict)


@dataclass
class _Measured:
    """What came of one load so far."""

    answers: list[Answered] = field(default_factory=list)
    busy_ns: int = 0

    def run(self, load: Load) -> BenchRun:
        groups = dict.fromkeys(answered.group for answered in self.answers)
        by_group = {
            group: summarize_run([a for a in self.answers if a.group == group], self.busy_ns) for group in groups
        }
        return BenchRun(load, summarize_run(self.answers, self.busy_ns), by_group)


def plan_loads(
    draft_lens: Sequence[int],
    concurrencies: Sequence[int | None],
    rates: Sequence[float] = (),
    *,
    with_oracle: bool = False,
) -> tuple[Load, ...]:
    """The plain target and each draft length at each concurrency and rate; the oracle alone, one request at a time."""
    loads = [Load("oracle", 0, 1)] if with_oracle else []
    paces = [(concurrency, None) for concurrency in dict.fromkeys(concurrencies)]
    for concurrency, rate in [*paces, *((None, rate) for rate in dict.fromkeys(rates))]:
        loads.append(Load("target", 0, concurrency, rate))
        loads += [Load("speculative", k, concurrency, rate) for k in dict.fromkeys(draft_lens) if k]
    return tuple(loads)


async def run_bench(
    endpoints: Mapping[Mode, AsyncEndpoint], plan: BenchPlan, timer: Timer, on_progress: OnProgress = silent
) -> tuple[BenchRun, ...]:
    """Warm every load up, then measure them in turns; a drift of the machine so hits all of them alike.

    Raises ServerError when a deployment answers with an error.
    """
    tags = itertools.count()
    measured = {load: _Measured() for load in plan.loads}
    done = 0
    for turn, load in _order(plan):
        warms_up = turn is None
        prompts = list(plan.prompts[: plan.warmup_requests] if warms_up else plan.prompts)
        answers, busy_ns = await measure_load(endpoints[load.mode], load, _tagged(prompts, plan, tags), timer, turn)
        if not warms_up:
            measured[load].answers += answers
            measured[load].busy_ns += busy_ns
        done += len(prompts)
        on_progress(Progress("bench", done, plan.num_requests, "requests"))
    return tuple(measured[load].run(load) for load in plan.loads)


async def measure_load(
    endpoint: AsyncEndpoint, load: Load, prompts: Sequence[BenchPrompt], timer: Timer, seed: int | None = 0
) -> tuple[list[Answered], int]:
    """Put one load on an endpoint: the answers, and the time in nanoseconds that the load was on.

    seed decides Poisson arrivals; None sends the requests of an open load one after another, as a warm-up.
    """
    requests = [EndpointRequest(prompt.text, prompt.max_new_tokens, load.draft_len) for prompt in prompts]
    started_ns = timer.now_ns()
    if load.concurrency is not None or seed is None:
        generations = await closed_loop(endpoint, requests, load.concurrency or 1)
    else:
        trace = [prompt.at_s for prompt in prompts]
        times_s = trace if load.rate is None else poisson_times(load.rate, len(requests), seed)
        generations = await open_loop(endpoint, requests, times_s, timer)
    busy_ns = timer.now_ns() - started_ns
    asked = zip(requests, prompts, generations, strict=True)
    return [Answered(request, prompt.group, generation) for request, prompt, generation in asked], busy_ns


def _order(plan: BenchPlan) -> Iterator[tuple[int | None, Load]]:
    """The warm-up of each load as turn None; then rounds, forwards and backwards: what came first comes last next."""
    yield from ((None, load) for load in plan.loads)
    for turn in range(plan.rounds):
        loads = plan.loads if turn % 2 == 0 else plan.loads[::-1]
        yield from ((plan.seed + turn, load) for load in loads)


def _tagged(prompts: Sequence[BenchPrompt], plan: BenchPlan, tags: "itertools.count[int]") -> list[BenchPrompt]:
    if not plan.cold:
        return list(prompts)
    return [tag_prompt(prompt, next(tags)) for prompt in prompts]


def tag_prompt(prompt: BenchPrompt, number: int) -> BenchPrompt:
    """The prompt with a number before it, so that nothing but the BOS is found in a prefix cache."""
    return BenchPrompt(f"[{number:05d}] {prompt.text}", prompt.max_new_tokens, prompt.group, prompt.at_s)
