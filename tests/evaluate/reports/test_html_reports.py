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
from trtkit.evaluate.checkpoint.html import checkpoint_html
from trtkit.evaluate.oracle.record import SkippedPrompt
from trtkit.evaluate.oracle.tolerance import NumericProfile
from trtkit.evaluate.parity.check import CheckedCase, CheckResult
from trtkit.evaluate.parity.document import ParityContext, parity_document
from trtkit.evaluate.parity.html import parity_html
from trtkit.evaluate.parity.verdicts import Referee
from trtkit.evaluate.sampling.html import sampling_html

PROFILE = NumericProfile("bfloat16", 2, 16)
HOSTILE = """'"><script>console.log("run")</script><img src=x onerror=alert(1)>"""
VOID = {"meta", "link"}


@pytest.fixture(scope="module")
def parity() -> str:
    referee = Referee(header(), PROFILE)
    asked = answer("a", step(10, 9, 5.0), step(12, 13, 0.01), step(14, 9, 5.0))
    cases = [
        CheckedCase(name, "short", k, "cold", referee.compare(asked, deployed(*ids), 3), deployed(*ids))
        for name, k, ids in (("<one>", 0, (10, 12, 14)), ("<one>", 4, (10, 13, 7)), ("two", None, (10, 12, 9)))
    ]
    skipped = (SkippedPrompt(HOSTILE, "key-c", "too <long>"),)
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


@pytest.fixture(scope="module")
def checkpoint() -> str:
    return checkpoint_html(checkpoint_document())


def checkpoint_document(**changes: Any) -> dict[str, Any]:
    """Three points of which the last leaves what rounding explains, and two stretches of positions."""
    names = ("embedding", "layer 0 <attention>", "layer 0 mlp", "logits")
    errors = (0.0, 0.01, 0.4, None)
    points = [
        {"name": name, "error": error, "tolerance": 0.02, "tensors": [f"tensor <{name}>"]}
        for name, error in zip(names, errors, strict=True)
    ]
    figures = {"num_positions": 6, "top1_agreement": 0.5, "mean_kl": 2e-13, "max_kl": 4e-13}
    return {
        "schema": "trtkit.checkpoint-parity/1",
        "verdict": "different",
        "first_fault": points[2],
        **figures,
        "max_logit_error": None,
        "perplexity": {"oracle": 64.5, "deployed": None},
        "by_position": [{"first": 4 * n, "last": 4 * n + 3, **figures} for n in range(2)],
        "points": points,
        "deployment": "build/<tiny>",
        "command": "trtkit parity checkpoint 'a & b'",
        "role": "target",
        "dtype": "bfloat16",
        "quantization": "none",
        "kv_dtype": "fp8",
        "skipped": [{"name": HOSTILE, "reason": "too <long>"}],
        "versions": {"trtkit": "0"},
        **changes,
    }


@pytest.fixture(scope="module")
def sampling() -> str:
    def test(name: str, draft_len: int, distance: float, decision: str) -> dict[str, Any]:
        figures = {"num_samples": 117, "num_bins": 5, "p_value": 0.00025, "detectable_distance": 0.24, "num_looks": 2}
        return {
            "name": name, "draft_len": draft_len, "position": 0, "distance": distance, "decision": decision, **figures
        }  # fmt: skip

    return sampling_html(
        {
            "schema": "trtkit.sampling-parity/2",
            "verdict": "different",
            "deployment": "build/<tiny>",
            "command": "trtkit parity sampling 'a & b'",
            "probabilities": "checkpoint",
            **{"temperature": 1.0, "seed": 7, "alpha": 0.01, "power": 0.9, "distance": 0.25},
            **{"num_samples": 234, "most_samples": 702, "same_draws": 0.5},
            "tests": [test("<one>", 0, 0.06, "consistent"), test("<one>", 4, 0.48, "different")],
            "skipped": [{"name": HOSTILE, "reason": "too <long>"}],
            "versions": {"trtkit": "0"},
        }
    )


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
    assert HOSTILE in text
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


def test_the_checkpoint_page_names_the_fault_and_draws_error_by_depth_and_agreement_by_position(
    checkpoint: str,
) -> None:
    text = text_of(checkpoint)
    assert "layer 0 mlp: relative error 0.4, rounding explains 0.02; look at tensor <layer 0 mlp>" in text
    shown = (
        "different (bfloat16, quantization none, cache fp8)",
        "50.00%",
        "2e-13",
        "64.5000",
        "no number",
        "0 to 3",
        "4 to 7",
    )
    assert all(each in text for each in (*shown, "layer 0 <attention>", HOSTILE, "too <long>", "'a & b'"))
    assert "tensor <embedding>" not in text  # what is right is not looked at
    figures = re.findall(r"<figure>.*?</figure>", checkpoint)
    assert [len(re.findall("<polyline", figure)) for figure in figures] == [2, 2, 1]
    assert [len(re.findall("<circle", figure)) for figure in figures] == [3 + 4, 2 + 2, 2]  # a NaN is no point


def test_a_checkpoint_without_a_fault_looks_at_no_tensor() -> None:
    points = [{"name": "embedding", "error": 0.0, "tolerance": 0.02, "tensors": ["a"]}]
    html = checkpoint_html(checkpoint_document(verdict="explained", first_fault=None, points=points, skipped=[]))
    text = text_of(html)
    assert "explained (bfloat16, quantization none, cache fp8)" in text
    assert "look at" not in text and "Left out" not in text


def test_a_checkpoint_of_which_nothing_is_a_number_still_has_a_page() -> None:
    nothing = {"first": 0, "last": 7, "num_positions": 8, "top1_agreement": 0.0, "mean_kl": None, "max_kl": None}
    points = [{"name": "embedding", "error": None, "tolerance": 0.02, "tensors": ["a"]}]
    html = checkpoint_html(checkpoint_document(mean_kl=None, max_kl=None, by_position=[nothing], points=points))
    assert "no number" in text_of(html)


def test_the_sampling_page_shows_each_distance_against_what_would_be_found(sampling: str) -> None:
    text = text_of(sampling)
    assert "different: 1 of 2 tests reject the target's distribution" in text
    shown = ("<one>", "0.06", "0.480", "0.240", "0.00025", "117", "50.0% of the seeds", "234 of at most 702")
    assert all(
        each in text
        for each in (*shown, HOSTILE, "too <long>", "'a & b'", "seeds from 7", "of the converted checkpoint")
    )
    bars = re.findall(r"<svg.*?</svg>", sampling)
    widths = [[float(width) for width in re.findall(r'width="([\d.]+)" height="10"', each)] for each in bars]
    assert widths == [[30, 90], [240, 0]]  # of 0.48: 0.06 observed where 0.24 is found; beyond it


def test_pages_need_nothing_from_elsewhere_and_escape_what_they_show(
    parity: str, bench: str, checkpoint: str, sampling: str
) -> None:
    for html in (parity, bench, checkpoint, sampling):
        assert not re.search(r"<(one|tiny|c|attention|long|tensor|embedding)>", html)
        assert not re.search(r"<script|https?:|url\(|@import|<img", html)
        assert re.findall(r'href="([^"]*)"', html) == ["data:,"]


@pytest.mark.parametrize("name", ["parity", "bench", "checkpoint", "sampling"])
def test_a_real_browser_draws_the_page_without_complaint(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert_a_browser_draws(request.getfixturevalue(name), tmp_path)
