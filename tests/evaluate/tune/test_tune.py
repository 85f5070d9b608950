"""The sweep for the best draft length by load: halving, budget, schedule, on a deployment with known speeds."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from browser import assert_a_browser_draws
from documented_reports import undocumented
from trtkit.errors import InputError
from trtkit.evaluate.bench.load import Timer
from trtkit.evaluate.bench.plan import BenchPrompt
from trtkit.evaluate.endpoints.endpoint import Answered, Arrival, EndpointRequest, Generation
from trtkit.evaluate.tune.document import TuneContext, schedule_of, tune_document
from trtkit.evaluate.tune.halving import Halving
from trtkit.evaluate.tune.html import advice_of, tune_html
from trtkit.evaluate.tune.plot import plot_tune
from trtkit.evaluate.tune.run import candidate_lengths, load_levels
from trtkit.evaluate.tune.sweep import Sweep, TunedLevel, TunePlan
from trtkit.serving.draft_schedule import DraftSchedule, Step

MS = 1_000_000
TOKENS = 12


class Deployment:
    """Answers 12 tokens; how long that takes depends on the draft length and on how many are under way."""

    def __init__(self, ms: dict[int, dict[int, float]]) -> None:
        self.ms = ms  # requests under way at most -> draft length -> milliseconds per answer
        self.now_ns = 0
        self.under_way = 0
        self.asked: list[EndpointRequest] = []

    def clock(self) -> int:
        return self.now_ns

    async def generate(self, request: EndpointRequest) -> Generation:
        self.asked.append(request)
        self.under_way += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        load = self.under_way
        assert request.draft_len is not None
        slow = next(by_length for limit, by_length in sorted(self.ms.items()) if load <= limit)
        sent = self.now_ns
        self.now_ns += round(slow[request.draft_len] * MS / load)
        self.under_way -= 1
        drafted = 2 * request.draft_len
        done = Arrival(sent + round(slow[request.draft_len] * MS), TOKENS)
        return Generation(tuple(range(TOKENS)), sent, (done,), drafted, drafted // 2, 6)


FAST_ALONE = {1: {0: 100.0, 1: 80.0, 2: 60.0, 3: 70.0, 4: 90.0}, 4: {0: 100.0, 1: 102.0, 2: 120.0, 3: 140.0, 4: 160.0}}
PROMPTS = tuple(BenchPrompt(f"p{number}", TOKENS) for number in range(5))


def sweep(
    deployment: Deployment, budget_s: float = 1000.0, concurrencies: tuple[int, ...] = (1, 4)
) -> list[TunedLevel]:
    plan = TunePlan((1, 2, 3, 4), concurrencies, PROMPTS, budget_s)
    return asyncio.run(Sweep(deployment, plan, Timer(deployment.clock)).run())


def document(levels: list[TunedLevel]) -> dict[str, Any]:
    plan = TunePlan((1, 2, 3, 4), (1, 4), PROMPTS, 1000.0)
    made = tune_document(levels, plan, TuneContext("b", "trtkit tune b", 12.0, None, {"trtkit": "0"}))
    made["schedule_file"] = None
    return made


def test_the_fastest_length_is_found_and_off_where_none_pays() -> None:
    alone, together = sweep(Deployment(FAST_ALONE))
    assert (alone.halving.recommended, together.halving.recommended) == (2, 0)
    assert schedule_of([alone, together]) == DraftSchedule((Step(1, 2), Step(4, 0)))


def test_every_rung_doubles_the_requests_and_drops_the_worse_half() -> None:
    (level,) = sweep(Deployment(FAST_ALONE), concurrencies=(1,))
    rungs = {draft_len: len(arm.busy_ns) for draft_len, arm in level.halving.arms.items()}
    assert rungs == {0: 3, 1: 1, 2: 3, 3: 2, 4: 1}
    assert [len(level.halving.arms[k].answers) for k in (1, 3, 2)] == [4, 4 + 8, 4 + 8 + 16]
    assert level.is_complete


def test_all_arms_of_a_rung_get_the_same_prompts_and_no_text_twice() -> None:
    deployment = Deployment(FAST_ALONE)
    sweep(deployment, concurrencies=(1,))
    texts = [request.text for request in deployment.asked]
    assert len(set(texts)) == len(texts)
    first_rung = deployment.asked[1 : 1 + 5 * 4]  # after the warm-up
    by_length: dict[int | None, list[str]] = {}
    for request in first_rung:
        by_length.setdefault(request.draft_len, []).append(request.text.split("] ")[1])
    assert set(map(tuple, by_length.values())) == {("p0", "p1", "p2", "p3")}


def test_lengths_that_surely_lose_end_the_contest_early() -> None:
    losing = Deployment({4: {0: 100.0, 1: 150.0, 2: 200.0, 3: 250.0, 4: 300.0}})
    (level,) = sweep(losing, concurrencies=(1,))
    assert level.halving.recommended == 0 and level.is_complete
    assert len(level.halving.arms[1].busy_ns) == 1


def test_the_budget_is_kept_and_what_was_cut_short_says_so() -> None:
    deployment = Deployment(FAST_ALONE)
    alone, _ = sweep(deployment, budget_s=5.0)
    assert deployment.now_ns / 1e9 <= 5.0
    assert not alone.is_complete and alone.halving.recommended == 2
    assert "cut short" in advice_of(document([alone])["levels"][0])
    (unmeasured,) = sweep(Deployment(FAST_ALONE), budget_s=0.5, concurrencies=(1,))
    assert unmeasured.halving.recommended is None and schedule_of([unmeasured]) is None
    assert "not measured" in advice_of(document([unmeasured])["levels"][0])


def test_a_deployment_that_says_nothing_is_no_contest() -> None:
    class Silent(Deployment):
        async def generate(self, request: EndpointRequest) -> Generation:
            self.now_ns += MS
            return Generation((), self.now_ns, (Arrival(self.now_ns, 0),))

    with pytest.raises(InputError, match="no token"):
        sweep(Silent(FAST_ALONE))


def test_a_gain_below_five_per_cent_is_off() -> None:
    (level,) = sweep(Deployment({4: {0: 100.0, 1: 97.0, 2: 98.0, 3: 99.0, 4: 99.0}}), concurrencies=(1,))
    assert level.halving.recommended == 0


def test_the_document_and_its_pages_hold_every_arm(tmp_path: Path) -> None:
    made = document(sweep(Deployment(FAST_ALONE)))
    assert json.loads(json.dumps(made, allow_nan=False))["schema"] == "trtkit.tune-report/1"
    assert undocumented(made) == set()
    assert made["schedule"] == [{"up_to": 1, "draft_len": 2}, {"up_to": 4, "draft_len": 0}]
    arm = made["levels"][0]["arms"][2]
    assert arm["draft_len"] == 2 and arm["speedup"] == pytest.approx(100 / 60)
    assert arm["speedup_interval"] == pytest.approx((100 / 60, 100 / 60))  # every answer takes the same time
    assert arm["acceptance_rate"] == 0.5
    html = tune_html(made)
    assert "1 under way: draft length 2" in html and "4 under way: off" in html
    assert html.count("<polyline") == 2
    plot_tune(made, tmp_path / "tune.png")
    assert (tmp_path / "tune.png").read_bytes().startswith(b"\x89PNG")


def test_a_real_browser_draws_the_page_without_complaint(tmp_path: Path) -> None:
    assert_a_browser_draws(tune_html(document(sweep(Deployment(FAST_ALONE)))), tmp_path)


def test_an_arm_is_compared_over_the_rungs_that_it_was_in() -> None:
    def answers(ms: int) -> list[Answered]:
        done = Arrival(ms * MS, 10)
        return [Answered(EndpointRequest("", 10, 1), "g", Generation(tuple(range(10)), 0, (done,)))]

    halving = Halving([1, 2], 4)
    for draft_len, ms in ((0, 100), (1, 50), (2, 200), (0, 900)):  # last a rung that the second length was not in
        halving.arms[draft_len].add(answers(ms), ms * MS)
    assert [(r.draft_len, r.speedup, r.speedup_interval) for r in halving.results] == [
        (1, 2, (2, 2)),
        (2, 0.5, (0.5, 0.5)),
    ]


def test_a_length_that_was_dropped_early_is_not_recommended_for_its_few_requests() -> None:
    halving = Halving([1, 2], 4)
    for draft_len, ms in ((0, 100), (1, 30), (2, 50), (0, 100), (2, 60)):
        done = Arrival(ms * MS, 10)
        answer = Answered(EndpointRequest("", 10, draft_len), "g", Generation(tuple(range(10)), 0, (done,)))
        halving.arms[draft_len].add([answer], ms * MS)
    assert max(halving.results, key=lambda result: result.speedup).draft_len == 1
    assert halving.recommended == 2


def test_the_schedule_rises_with_the_load_whatever_was_measured_first() -> None:
    schedule = schedule_of(sweep(Deployment(FAST_ALONE), concurrencies=(4, 1)))
    assert schedule == DraftSchedule((Step(1, 2), Step(4, 0)))


@pytest.mark.parametrize(
    ("max_draft_len", "lengths"), [(1, (1,)), (4, (1, 2, 3, 4)), (5, (1, 2, 3, 4, 5)), (16, (1, 2, 3, 4, 6, 9, 13, 16))]
)
def test_candidates_reach_the_builds_length_in_few_steps(max_draft_len: int, lengths: tuple[int, ...]) -> None:
    assert candidate_lengths(max_draft_len) == lengths


@pytest.mark.parametrize(("batch", "loads"), [(1, (1,)), (4, (1, 2, 4)), (6, (1, 2, 4, 6))])
def test_loads_are_powers_of_two_up_to_the_batch(batch: int, loads: tuple[int, ...]) -> None:
    assert load_levels(batch) == loads
