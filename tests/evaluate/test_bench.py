"""Which loads a bench runs, in which order, and what its figures say about speculation."""

import json
import threading
from pathlib import Path

import pytest
from trtkit.evaluate.bench import BenchPlan, BenchRun, Load, plan_loads, run_bench
from trtkit.evaluate.bench_plot import plot_bench
from trtkit.evaluate.endpoint import Arrival, EndpointRequest, Generation
from trtkit.evaluate.latency import RunStats, Spread
from trtkit.evaluate.reports.bench_document import BenchContext, bench_document
from trtkit.evaluate.speedup import Speedup, recommended_draft_lens, speedups_of

MS = 1_000_000
CONTEXT = BenchContext("build/tiny", "trtkit bench build/tiny", "float32", {"trtkit": "0"})


class Clock:
    """A clock that the endpoint below moves on; nothing else takes time."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class SteadyEndpoint:
    """Answers three tokens: the first after 10 ms, the others 4 ms apart, or at once while drafting."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked: list[EndpointRequest] = []

    def generate(self, request: EndpointRequest) -> Generation:
        self.asked.append(request)
        sent = self.clock.now_ns
        drafting = bool(request.draft_len)
        arrivals = [(10, 1), (14, 2)] if drafting else [(10, 1), (14, 1), (18, 1)]
        self.clock.now_ns += arrivals[-1][0] * MS
        times = tuple(Arrival(sent + ms * MS, tokens) for ms, tokens in arrivals)
        counts = (4, 1, 2) if drafting else (0, 0, 3)
        return Generation((7, 8, 9), sent, times, *counts)


def bench(plan: BenchPlan) -> tuple[tuple[BenchRun, ...], list[EndpointRequest]]:
    clock = Clock()
    endpoint = SteadyEndpoint(clock)
    return run_bench({"target": endpoint, "speculative": endpoint}, plan, clock), endpoint.asked


PLAN = BenchPlan(plan_loads([2], [1], with_oracle=False), ("a", "b"), 3, rounds=2, warmup_requests=1)


def test_each_concurrency_gets_the_plain_target_and_every_draft_length() -> None:
    assert plan_loads([1, 4, 0, 4], [1, 2], with_oracle=True) == (
        Load("oracle", 0, 1),
        Load("target", 0, 1),
        Load("speculative", 1, 1),
        Load("speculative", 4, 1),
        Load("target", 0, 2),
        Load("speculative", 1, 2),
        Load("speculative", 4, 2),
    )


def test_loads_take_turns_and_change_their_order_each_round() -> None:
    _, asked = bench(PLAN)
    warm_up, rounds = [0, 2], [0, 0, 2, 2, 2, 2, 0, 0]
    assert [request.draft_len for request in asked] == warm_up + rounds


def test_cold_prompts_never_repeat_and_warm_ones_do() -> None:
    _, cold = bench(PLAN)
    assert len({request.text for request in cold}) == len(cold) == PLAN.num_requests
    assert all(request.text.endswith((" a", " b")) for request in cold)
    _, warm = bench(BenchPlan(PLAN.loads, PLAN.texts, 3, cold=False))
    assert {request.text for request in warm} == {"a", "b"}


def test_the_figures_leave_the_warm_up_out() -> None:
    (plain, speculative), _ = bench(PLAN)
    assert plain.stats is not None and speculative.stats is not None
    assert (plain.stats.num_requests, plain.stats.ttft_ms, plain.stats.tpot_ms) == (4, Spread(10, 10), Spread(4, 4))
    assert plain.stats.tokens_per_s == pytest.approx(12 / (4 * 0.018))
    assert speculative.stats.tpot_ms == Spread(2, 2)
    assert (speculative.stats.acceptance_rate, speculative.stats.mean_acceptance_length) == (0.25, 1.5)


def test_concurrent_requests_are_in_flight_together() -> None:
    together = threading.Barrier(3, timeout=10)

    class Meeting:
        def generate(self, request: EndpointRequest) -> Generation:
            together.wait()  # raises BrokenBarrierError unless three requests meet here
            return Generation((1,), 0, (Arrival(MS, 1),))

    plan = BenchPlan((Load("target", 0, 3),), ("a", "b", "c"), 1, rounds=1, warmup_requests=0)
    (run,) = run_bench({"target": Meeting()}, plan, iter(range(MS)).__next__)
    assert run.stats is not None
    assert run.stats.num_requests == 3


def stats(tokens_per_s: float) -> RunStats:
    return RunStats(1, 10, Spread(1, 1), Spread(1, 1), Spread(1, 1), tokens_per_s, None, None)


def test_speed_up_is_over_the_plain_target_at_the_same_concurrency() -> None:
    runs = [
        BenchRun(Load("target", 0, 1), stats(10)),
        BenchRun(Load("speculative", 4, 1), stats(15)),
        BenchRun(Load("target", 0, 8), stats(50)),
        BenchRun(Load("speculative", 4, 8), stats(25)),
    ]
    assert speedups_of(runs) == [Speedup(1, 4, 1.5), Speedup(8, 4, 0.5)]


def test_the_best_draft_length_is_recommended_and_off_where_none_pays() -> None:
    speedups = [Speedup(1, 2, 1.2), Speedup(1, 4, 1.5), Speedup(1, 6, 1.4), Speedup(8, 2, 0.9), Speedup(8, 4, 1.02)]
    assert recommended_draft_lens(speedups) == {1: 4, 8: 0}


def test_the_document_keeps_the_contract() -> None:
    runs, _ = bench(PLAN)
    document = json.loads(json.dumps(bench_document(runs, PLAN, CONTEXT), allow_nan=False))
    assert document["schema"] == "trtkit.bench-report/1"
    for run in document["runs"]:
        assert run.keys() >= {
            "mode",
            "max_draft_len",
            "concurrency",
            "ttft_ms",
            "tpot_ms",
            "tokens_per_s",
            "acceptance_rate",
            "mean_acceptance_length",
        }
    assert document["recommended_max_draft_len"] == {"1": 2}


def test_a_run_without_tokens_is_reported_without_figures() -> None:
    document = bench_document([BenchRun(Load("target", 0, 1), None)], PLAN, CONTEXT)
    assert document["runs"][0]["ttft_ms"] is None
    assert document["recommended_max_draft_len"] == {}


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    runs, _ = bench(PLAN)
    plot_bench(bench_document(runs, PLAN, CONTEXT), tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
