"""Runs the bench: which loads are put on a deployment, in which order. The clock is injected; latency.py adds up."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

from trtkit.evaluate.endpoint import Endpoint, EndpointRequest, Generation
from trtkit.evaluate.latency import RunStats, summarize_run
from trtkit.progress import OnProgress, Progress, silent

Mode = Literal["target", "speculative", "oracle"]
ClockNs = Callable[[], int]


@dataclass(frozen=True)
class Load:
    """One kind of load: the mode, the draft length (0 is speculation off), and the requests in flight at once."""

    mode: Mode
    draft_len: int
    concurrency: int


@dataclass(frozen=True)
class BenchPlan:
    """What is sent. Each load gets every text once a round, and `rounds` rounds take turns between the loads.

    cold makes every text new to the deployment's prefix cache by a tag before it; otherwise the texts are sent as they
    are, and all but the first find their prefix.
    """

    loads: tuple[Load, ...]
    texts: tuple[str, ...]
    max_new_tokens: int
    rounds: int = 2
    warmup_requests: int = 2
    cold: bool = True

    @property
    def num_requests(self) -> int:
        """Requests of the whole bench, warm-up included."""
        return len(self.loads) * (self.warmup_requests + self.rounds * len(self.texts))


@dataclass(frozen=True)
class BenchRun:
    """One load and its figures over all rounds; None when no answer had a token."""

    load: Load
    stats: RunStats | None


def plan_loads(draft_lens: Sequence[int], concurrencies: Sequence[int], *, with_oracle: bool) -> tuple[Load, ...]:
    """The plain target and each draft length at each concurrency; the oracle alone, one request at a time."""
    loads = [Load("oracle", 0, 1)] if with_oracle else []
    for concurrency in dict.fromkeys(concurrencies):
        loads.append(Load("target", 0, concurrency))
        loads += [Load("speculative", k, concurrency) for k in dict.fromkeys(draft_lens) if k]
    return tuple(loads)


def run_bench(
    endpoints: Mapping[Mode, Endpoint], plan: BenchPlan, clock_ns: ClockNs, on_progress: OnProgress = silent
) -> tuple[BenchRun, ...]:
    """Warm every load up, then measure them in turns; a drift of the machine so hits all of them alike.

    Raises ServerError when a deployment answers with an error.
    """
    tags = itertools.count()
    answers: dict[Load, list[Generation]] = {load: [] for load in plan.loads}
    busy_ns = dict.fromkeys(plan.loads, 0)
    done = 0
    for load in plan.loads:
        _put_load(endpoints[load.mode], load, _texts(plan, tags)[: plan.warmup_requests], plan.max_new_tokens)
        done += plan.warmup_requests
        on_progress(Progress("bench", done, plan.num_requests, "requests"))
    for turn in range(plan.rounds):
        for load in _in_turn(plan.loads, turn):
            started_ns = clock_ns()
            answers[load] += _put_load(endpoints[load.mode], load, _texts(plan, tags), plan.max_new_tokens)
            busy_ns[load] += clock_ns() - started_ns
            done += len(plan.texts)
            on_progress(Progress("bench", done, plan.num_requests, "requests"))
    return tuple(BenchRun(load, summarize_run(answers[load], busy_ns[load])) for load in plan.loads)


def _in_turn(loads: Sequence[Load], turn: int) -> Sequence[Load]:
    """Forwards, then backwards: what comes first in one round comes last in the next."""
    return loads if turn % 2 == 0 else loads[::-1]


def _texts(plan: BenchPlan, tags: "itertools.count[int]") -> list[str]:
    return [f"[{next(tags):05d}] {text}" for text in plan.texts] if plan.cold else list(plan.texts)


def _put_load(endpoint: Endpoint, load: Load, texts: Sequence[str], max_new_tokens: int) -> list[Generation]:
    """Keep `concurrency` requests in flight until every text is answered; a closed loop."""
    request = EndpointRequest("", max_new_tokens, load.draft_len)
    with ThreadPoolExecutor(load.concurrency) as pool:
        return list(pool.map(lambda text: endpoint.generate(replace(request, text=text)), texts))
