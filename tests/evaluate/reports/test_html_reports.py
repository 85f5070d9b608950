"""The HTML pages: well-formed, self-contained, escaped, and drawn by a real browser without complaint."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import assert_a_browser_draws
from parity_samples import answer, deployed, header, step
from trtkit.evaluate.bench.document import BenchContext, bench_document
from trtkit.evaluate.bench.html import bench_html
from trtkit.evaluate.bench.latency import RunStats, spread_of
from trtkit.evaluate.bench.plan import BenchPlan, BenchPrompt, BenchRun, Load
from trtkit.evaluate.oracle.record import SkippedPrompt
from trtkit.evaluate.oracle.tolerance import NumericProfile
from trtkit.evaluate.parity.check import CheckedCase, CheckResult
from trtkit.evaluate.parity.document import ParityContext, parity_document
from trtkit.evaluate.parity.html import parity_html
from trtkit.evaluate.parity.verdicts import Referee

PROFILE = NumericProfile("bfloat16", 2, 16)
VOID = {"meta", "link"}


@pytest.fixture(scope="module")
def parity() -> str:
    referee = Referee(header(), PROFILE)
    asked = answer("a", step(10, 9, 5.0), step(12, 13, 0.01), step(14, 9, 5.0))
    cases = [
        CheckedCase(name, "short", k, "cold", referee.compare(asked, deployed(*ids), 3), deployed(*ids))
        for name, k, ids in (("<one>", 0, (10, 12, 14)), ("<one>", 4, (10, 13, 7)), ("two", None, (10, 12, 9)))
    ]
    skipped = (SkippedPrompt("c", "key-c", "too <long>"),)
    context = ParityContext(
        "build/<tiny>", "trtkit parity check 'a & b'", 3, header(), PROFILE, {}, skipped, {"trtkit": "0"}
    )
    return parity_html(parity_document(CheckResult(tuple(cases)), context))


@pytest.fixture(scope="module")
def bench() -> str:
    def run(mode: Any, draft_len: int, concurrency: int, speed: float) -> BenchRun:
        rate = 0.5 if mode == "speculative" else None
        stats = RunStats(
            num_requests=4,
            num_tokens=40,
            ttft_ms=spread_of([50, 60, 80]),
            tpot_ms=spread_of([12.5, 20]),
            e2e_ms=spread_of([200, 300]),
            tokens_per_s=speed,
            tokens_per_s_interval=(speed - 1, speed + 1),
            requests_per_s=1.0,
            acceptance_rate=rate,
            mean_acceptance_length=rate and 2.0,
            acceptance_by_position=rate and (0.8, 0.5, 0.3, 0.1),
            mean_reused_blocks=0.0,
        )
        return BenchRun(Load(mode, draft_len, concurrency), stats, {"<code>": stats})

    runs = [run("oracle", 0, 1, 10), run("target", 0, 1, 20), run("speculative", 4, 1, 30)]
    plan = BenchPlan(tuple(each.load for each in runs), (BenchPrompt("a", 16),))
    return bench_html(bench_document(runs, plan, BenchContext("b", "trtkit bench b", "float32", {"trtkit": "0"})))


class Balance(HTMLParser):
    """Fails on the first end tag that closes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """<rect .../> opens nothing."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def text_of(html: str) -> str:
    parser = Balance()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser.text


def test_the_parity_page_holds_every_request_and_escapes_what_it_shows(parity: str) -> None:
    text = text_of(parity)
    assert "different: 0 of 2 prompts identical, 1 near-tie, 1 different" in text
    assert all(shown in text for shown in ("<one>", "build/<tiny>", "too <long>", "'a & b'", "default"))
    assert "<one>" not in parity and "<tiny>" not in parity


def test_bars_are_green_up_to_the_difference_and_red_after_it(parity: str) -> None:
    bars = re.findall(r"<svg.*?</svg>", parity)
    widths = [[float(width) for width in re.findall(r'width="([\d.]+)" height="10"', each)] for each in bars]
    assert widths == [[240, 0, 0], [80, 160, 0], [160, 0, 80]]  # identical; near-tie after 1 of 3; different at 2 of 3


def test_the_bench_page_holds_every_run(bench: str) -> None:
    text = text_of(bench)
    assert all(shown in text for shown in ("transformers", "target c=1", "K=4 c=1", "1.500", "draft length 4 is best"))
    assert "<code>" in text and "19.0 to 21.0" in text
    # Distributions of three latencies, the speed-up over K, and the acceptance by position.
    assert [len(re.findall("<polyline", figure)) for figure in re.findall(r"<figure>.*?</figure>", bench)] == [
        *(3, 3, 3),
        1,
        1,
    ]


def test_pages_need_nothing_from_elsewhere(parity: str, bench: str) -> None:
    for html in (parity, bench):
        assert not re.search(r"<script|https?:|url\(|@import|src=", html)
        assert re.findall(r'href="([^"]*)"', html) == ["data:,"]


@pytest.mark.parametrize("name", ["parity", "bench"])
def test_a_real_browser_draws_the_page_without_complaint(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert_a_browser_draws(request.getfixturevalue(name), tmp_path)
