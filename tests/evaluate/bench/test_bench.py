"""Which loads a bench runs, in which order, and what its figures say about speculation."""

import asyncio
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from documented_reports import undocumented
from trtkit.errors import InputError
from trtkit.evaluate.bench.document import BenchContext, bench_document, run_name
from trtkit.evaluate.bench.html import bench_html
from trtkit.evaluate.bench.latency import RunStats, spread_of
from trtkit.evaluate.bench.load import Timer
from trtkit.evaluate.bench.plan import BenchPlan, BenchPrompt, BenchRun, Load, plan_loads, run_bench
from trtkit.evaluate.bench.plot import plot_bench
from trtkit.evaluate.bench.prompts import bench_prompts
from trtkit.evaluate.bench.run import BenchOptions, bench_deployment
from trtkit.evaluate.bench.speedup import Speedup, recommended_draft_lens, speedups_of
from trtkit.evaluate.bench.summary import bench_junit, bench_markdown
from trtkit.evaluate.endpoints.deployment import Target
from trtkit.evaluate.endpoints.endpoint import Arrival, EndpointRequest, Generation
from trtkit.evaluate.oracle.record_choice import PromptChoice

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

    async def generate(self, request: EndpointRequest) -> Generation:
        self.asked.append(request)
        sent = self.clock.now_ns
        drafting = bool(request.draft_len)
        arrivals = [(10, 1), (14, 2)] if drafting else [(10, 1), (14, 1), (18, 1)]
        self.clock.now_ns += arrivals[-1][0] * MS
        times = tuple(Arrival(sent + ms * MS, tokens) for ms, tokens in arrivals)
        counts = (4, 1, 2) if drafting else (0, 0, 3)
        return Generation((7, 8, 9), sent, times, *counts, num_reused_blocks=2)


def bench(plan: BenchPlan) -> tuple[tuple[BenchRun, ...], list[EndpointRequest]]:
    clock = Clock()
    endpoint = SteadyEndpoint(clock)
    return asyncio.run(run_bench({"target": endpoint, "speculative": endpoint}, plan, Timer(clock))), endpoint.asked


PROMPTS = (BenchPrompt("a", 3, "short"), BenchPrompt("b", 3, "long"))
PLAN = BenchPlan(plan_loads([2], [1], with_oracle=False), PROMPTS, rounds=2, warmup_requests=1)


def test_each_pace_gets_the_plain_target_and_every_draft_length() -> None:
    assert plan_loads([1, 4, 0, 4], [1, 2], [0.5], with_oracle=True) == (
        Load("oracle", 0, 1),
        Load("target", 0, 1),
        Load("speculative", 1, 1),
        Load("speculative", 4, 1),
        Load("target", 0, 2),
        Load("speculative", 1, 2),
        Load("speculative", 4, 2),
        Load("target", 0, None, 0.5),
        Load("speculative", 1, None, 0.5),
        Load("speculative", 4, None, 0.5),
    )


def test_loads_take_turns_and_change_their_order_each_round() -> None:
    _, asked = bench(PLAN)
    warm_up, rounds = [0, 2], [0, 0, 2, 2, 2, 2, 0, 0]
    assert [request.draft_len for request in asked] == warm_up + rounds


def test_cold_prompts_never_repeat_and_warm_ones_do() -> None:
    _, cold = bench(PLAN)
    assert len({request.text for request in cold}) == len(cold) == PLAN.num_requests
    assert all(request.text.endswith((" a", " b")) for request in cold)
    _, warm = bench(BenchPlan(PLAN.loads, PROMPTS, cold=False))
    assert {request.text for request in warm} == {"a", "b"}


def test_the_figures_leave_the_warm_up_out() -> None:
    (plain, speculative), _ = bench(PLAN)
    assert plain.stats is not None and speculative.stats is not None
    assert plain.stats.num_requests == 4
    assert plain.stats.ttft_ms == spread_of([10] * 4) and plain.stats.tpot_ms == spread_of([4] * 4)
    assert plain.stats.tokens_per_s == pytest.approx(12 / (4 * 0.018))
    assert plain.stats.requests_per_s == pytest.approx(1 / 0.018)
    assert plain.stats.mean_reused_blocks == 2
    assert speculative.stats.tpot_ms == spread_of([2] * 4)
    assert (speculative.stats.acceptance_rate, speculative.stats.mean_acceptance_length) == (0.25, 1.5)


def test_every_class_of_prompt_has_figures_of_its_own() -> None:
    (plain, _), _ = bench(PLAN)
    assert {name: stats.num_requests for name, stats in plain.groups.items() if stats} == {"short": 2, "long": 2}
    group = bench_document([plain], PLAN, CONTEXT)["runs"][0]["groups"]["short"]
    assert group["ttft_ms"]["p50"] == 10 and "tokens_per_s" not in group


def stats(tokens_per_s: float) -> RunStats:
    one = spread_of([1])
    return RunStats(1, 10, one, one, one, tokens_per_s, (1, 2), 1.0, None, None, None, None)


def test_speed_up_is_over_the_plain_target_at_the_same_concurrency() -> None:
    runs = [
        BenchRun(Load("target", 0, 1), stats(10)),
        BenchRun(Load("speculative", 4, 1), stats(15)),
        BenchRun(Load("target", 0, 8), stats(50)),
        BenchRun(Load("speculative", 4, 8), stats(25)),
    ]
    assert speedups_of(runs) == [Speedup(1, 4, 1.5), Speedup(8, 4, 0.5)]


def test_an_open_loop_has_no_speed_up() -> None:
    runs = [BenchRun(Load("target", 0, None, 2.0), stats(10)), BenchRun(Load("speculative", 4, None, 2.0), stats(10))]
    assert speedups_of(runs) == []


def test_the_best_draft_length_is_recommended_and_off_where_none_pays() -> None:
    speedups = [Speedup(1, 2, 1.2), Speedup(1, 4, 1.5), Speedup(1, 6, 1.4), Speedup(8, 2, 0.9), Speedup(8, 4, 1.02)]
    assert recommended_draft_lens(speedups) == {1: 4, 8: 0}


def test_the_document_keeps_the_contract() -> None:
    runs, _ = bench(PLAN)
    document = json.loads(json.dumps(bench_document(runs, PLAN, CONTEXT), allow_nan=False))
    assert document["schema"] == "trtkit.bench-report/1"
    assert undocumented(document) == set()
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


@pytest.mark.parametrize(
    ("load", "name"),
    [
        (Load("oracle", 0, 1), "transformers"),
        (Load("target", 0, 4), "target c=4"),
        (Load("speculative", 5, None, 2.5), "K=5 2.5/s"),
        (Load("speculative", 5, None), "K=5 trace"),
    ],
)
def test_a_run_is_named_by_its_draft_length_and_pace(load: Load, name: str) -> None:
    assert run_name(bench_document([BenchRun(load, None)], PLAN, CONTEXT)["runs"][0]) == name


def test_a_run_without_tokens_is_reported_without_figures() -> None:
    document = bench_document([BenchRun(Load("target", 0, 1), None)], PLAN, CONTEXT)
    assert document["runs"][0]["ttft_ms"] is None
    assert document["recommended_max_draft_len"] == {}


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    runs, _ = bench(PLAN)
    plot_bench(bench_document(runs, PLAN, CONTEXT), tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def document_with_baseline() -> dict[str, Any]:
    runs, _ = bench(PLAN)
    document = bench_document(runs, PLAN, CONTEXT)
    worse = {"run": "speculative K=2 c=1", "measure": "acceptance_rate", "baseline": 0.9, "value": 0.25}
    document["baseline"] = {"file": "b.json", "num_compared": 3, "regressions": [worse | {"allowed": 0.765}]}
    return document


def test_the_summary_page_holds_the_figures_the_advice_and_what_got_worse() -> None:
    text = bench_markdown(document_with_baseline())
    assert "| K=2 c=1 | 10 | 10 | 2 | 2 | 214 | 1.29 | 0.25 |" in text
    assert "- concurrency 1: draft length 2" in text
    assert "1 of 3 measures are worse than allowed" in text and "acceptance_rate 0.250, baseline 0.900" in text


def test_a_broken_limit_is_in_every_report() -> None:
    document = document_with_baseline() | {"broken_limits": ["K=2 c=1: ttft_ms 10, at most 5 allowed"]}
    suite = ElementTree.fromstring(bench_junit(document)).find("testsuite")
    assert suite is not None and suite.attrib["failures"] == "2"
    assert suite.find("testcase[@name='limits']/failure").attrib["message"] == document["broken_limits"][0]  # type: ignore[union-attr]
    assert "- **K=2 c=1: ttft_ms 10, at most 5 allowed**" in bench_markdown(document)
    assert "K=2 c=1: ttft_ms 10, at most 5 allowed" in bench_html(document)


def test_every_measure_of_the_baseline_is_a_junit_case() -> None:
    xml = bench_junit(document_with_baseline())
    assert 'name="acceptance_rate"' in xml and xml.count("<testcase") == 4 and xml.count("<failure") == 1
    suite = ElementTree.fromstring(bench_junit(document_with_baseline(), ["out/report.html"]))
    said = [(case.find("failure") is not None, case.findtext("system-out")) for case in suite.iter("testcase")]
    assert [text for fails, text in said if fails] == ["[[ATTACHMENT|out/report.html]]"]
    assert not any("ATTACHMENT" in (text or "") for fails, text in said if not fails)


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e-320, 1e300, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_planned_is_refused(rate: float) -> None:
    options = BenchOptions(PromptChoice(), draft_lens=(1,), rates=(rate,))
    with pytest.raises(InputError, match="requests per second cannot be planned"):
        bench_deployment(Target("nobody", address="127.0.0.1:1"), options)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"concurrencies": (2, 9), "num_requests": 8}, "8 requests a round are never 9 under way at once"),
        ({"trace": Path("t.jsonl"), "rates": (1.0,)}, "a trace has its own times"),
        ({"trace": Path("t.jsonl"), "concurrencies": (1,)}, "a trace has its own times"),
        ({"with_oracle": True}, "transformers cannot be measured for a URL"),
    ],
)
def test_options_that_contradict_one_another_are_refused_before_anything_is_asked(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said) as refused:
        bench_deployment(
            Target("nobody", address="127.0.0.1:1"), BenchOptions(PromptChoice(), draft_lens=(1,), **changes)
        )
    assert refused.value.code == "BENCH"


def test_a_url_leaves_chats_out_and_says_so() -> None:
    prompts, skipped = bench_prompts(None, PromptChoice(limit=7), 8)
    assert len(prompts) == 8
    assert [(entry.name, entry.reason) for entry in skipped] == [
        ("chat-tea", "a chat, and a URL does not tell its template")
    ]
