"""A bench document as an HTML page: bars, distributions, speed-up and acceptance. Knows the document, no results."""

from collections.abc import Iterator, Mapping
from typing import Any

from trtkit.evaluate.bench.document import run_name
from trtkit.evaluate.bench.latency import QUANTILE_STEP
from trtkit.evaluate.reports.chart import Axis, Line, chart
from trtkit.evaluate.reports.page import Cell, Part, bar, ending, heading, left_out, page, paragraph, table

_FIGURES = {
    "tokens_per_s": "Tokens per second",
    "ttft_ms": "Time to first token, ms",
    "tpot_ms": "Time per token after it, ms",
}
_DISTRIBUTIONS = {"ttft_ms": "time to first token, ms", "tpot_ms": "time per token, ms", "e2e_ms": "whole answer, ms"}
_MODE_COLORS = {"oracle": "#9aa4b0", "target": "#33638d", "speculative": "#e08a2e"}


def bench_html(document: Mapping[str, Any]) -> str:
    """Figures of every run as bars, distributions, speed-up by draft length, acceptance, and how to do it again."""
    return page(f"Bench of {document['deployment']}", _sections(document))


def _sections(document: Mapping[str, Any]) -> Iterator[str]:
    plan = document["plan"]
    yield heading(f"Bench of {document['deployment']}", 1)
    yield paragraph(
        f"{document['dtype']}, {plan['num_prompts']} prompts a round, {plan['rounds']} rounds, answers of at most "
        f"{plan['max_new_tokens']} tokens, {plan['cache']} prefix cache"
    )
    for line in document.get("broken_limits", ()):
        yield paragraph(line, "different")
    for key, title in _FIGURES.items():
        yield heading(title)
        titles = ("run", "", "median", "95 % interval", "p95")
        yield table([Cell(title, is_number=column > 1) for column, title in enumerate(titles)], _bars(document, key))
    yield from _distributions(document)
    yield from _speculation(document)
    yield heading("By class of prompt")
    yield table([Cell(title) for title in ("run", "class", "TTFT p50", "TPOT p50", "acceptance")], _classes(document))
    yield from left_out(document["skipped"])
    yield heading("Definitions")
    yield table([Cell("figure"), Cell("is")], ([Cell(k), Cell(v)] for k, v in document["definitions"].items()))
    yield from ending(document)


def _bars(document: Mapping[str, Any], key: str) -> Iterator[list[Cell]]:
    runs = [run for run in document["runs"] if run[key] is not None]
    full = max((_median(run[key]) for run in runs), default=0.0)
    for run in runs:
        middle, spread = _median(run[key]), run[key] if isinstance(run[key], dict) else None
        interval = spread["p50_interval"] if spread else run[f"{key}_interval"]
        drawing = bar([Part(middle, _MODE_COLORS[run["mode"]])], full, f"{run_name(run)}: {middle:.1f}")
        bounds = "" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
        texts = (f"{middle:.1f}", bounds, f"{spread['p95']:.1f}" if spread else "")
        yield [Cell(run_name(run)), Cell("", drawing=drawing), *(Cell(text, is_number=True) for text in texts)]


def _median(value: Any) -> float:
    return float(value["p50"] if isinstance(value, dict) else value)


def _distributions(document: Mapping[str, Any]) -> Iterator[str]:
    yield heading("Latency distributions")
    yield paragraph("The share of requests, in per cent, that took at most so long.", "muted")
    for key, label in _DISTRIBUTIONS.items():
        lines = [
            Line(run_name(run), [(value, QUANTILE_STEP * n) for n, value in enumerate(run[key]["quantiles"])])
            for run in document["runs"]
            if run[key] is not None
        ]
        yield chart(lines, Axis(label, low=0), Axis("requests, %", 0, 100))


def _speculation(document: Mapping[str, Any]) -> Iterator[str]:
    yield heading("Speculation")
    columns = [Cell("run"), *(Cell(title, is_number=True) for title in ("speed-up", "acceptance", "tokens per pass"))]
    yield table(columns, _speculation_rows(document))
    by_load: dict[int, list[tuple[float, float]]] = {}
    for speedup in document["speedups"]:
        by_load.setdefault(speedup["concurrency"], [(0, 1.0)]).append((speedup["draft_len"], speedup["factor"]))
    lines = [Line(f"concurrency {concurrency}", sorted(points)) for concurrency, points in by_load.items()]
    yield chart(lines, Axis("draft length", low=0), Axis("speed-up", low=0))
    for concurrency, draft_len in document["recommended_max_draft_len"].items():
        advice = f"draft length {draft_len} is best" if draft_len else "speculation does not pay, use draft length 0"
        yield paragraph(f"At concurrency {concurrency} {advice}.")
    yield heading("Acceptance by position")
    positions = [
        Line(run_name(run), list(enumerate(run["acceptance_by_position"], 1)))
        for run in document["runs"]
        if run["acceptance_by_position"]
    ]
    yield chart(positions, Axis("position in the draft", low=1), Axis("share accepted", 0, 1))


def _speculation_rows(document: Mapping[str, Any]) -> Iterator[list[Cell]]:
    factors = {(s["draft_len"], s["concurrency"]): s["factor"] for s in document["speedups"]}
    for run in document["runs"]:
        if run["mode"] != "speculative":
            continue
        factor = factors.get((run["max_draft_len"], run["concurrency"]))
        figures = (factor, run["acceptance_rate"], run["mean_acceptance_length"])
        yield [Cell(run_name(run)), *(Cell("" if f is None else f"{f:.3f}", is_number=True) for f in figures)]


def _classes(document: Mapping[str, Any]) -> Iterator[list[Cell]]:
    for run in document["runs"]:
        for name, group in run["groups"].items():
            figures = (_middle(group["ttft_ms"]), _middle(group["tpot_ms"]), group["acceptance_rate"])
            shown = (Cell("" if figure is None else f"{figure:.3g}") for figure in figures)
            yield [Cell(run_name(run)), Cell(name), *shown]


def _middle(spread: Mapping[str, float] | None) -> float | None:
    return None if spread is None else spread["p50"]
