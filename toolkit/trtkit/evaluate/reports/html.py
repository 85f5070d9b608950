"""Parity and bench documents as HTML pages. Knows documents, no results behind them."""

from collections.abc import Iterator, Mapping
from typing import Any

from trtkit.evaluate.reports.bench_document import run_name
from trtkit.evaluate.reports.junit import explain_case
from trtkit.evaluate.reports.markdown import parity_summary
from trtkit.evaluate.reports.page import COLORS, Cell, Part, bar, code, heading, page, paragraph, table

_FIGURES = {
    "tokens_per_s": "Tokens per second",
    "ttft_ms": "Time to first token, ms",
    "tpot_ms": "Time per token after it, ms",
}
_MODE_COLORS = {"oracle": "#9aa4b0", "target": "#33638d", "speculative": "#e08a2e"}


def parity_html(document: Mapping[str, Any]) -> str:
    """Verdict, the map of where answers part, every difference, the tolerance, and how to do it again."""
    return page(f"Parity of {document['deployment']}", _parity_sections(document))


def bench_html(document: Mapping[str, Any]) -> str:
    """Figures of every run as bars, the speed-up by draft length, definitions, and how to do it again."""
    return page(f"Bench of {document['deployment']}", _bench_sections(document))


def _parity_sections(document: Mapping[str, Any]) -> Iterator[str]:
    yield heading(f"Parity of {document['deployment']}", 1)
    yield paragraph(parity_summary(document), document["verdict"])
    yield heading("Where answers part")
    yield paragraph("One bar per request: tokens that agree, then what follows a near-tie or a difference.", "muted")
    yield table(
        [Cell("prompt"), Cell("draft length"), Cell("condition"), Cell("tokens"), Cell("first difference")],
        _map_rows(document),
    )
    if document["skipped"]:
        yield heading("Left out")
        rows = ([Cell(left_out["name"]), Cell(left_out["reason"])] for left_out in document["skipped"])
        yield table([Cell("prompt"), Cell("why")], rows)
    yield heading("Tolerance of a near-tie")
    yield code(document["tolerance"]["formula"])
    yield from _ending(document)


def _map_rows(document: Mapping[str, Any]) -> Iterator[list[Cell]]:
    full = max((case["num_tokens"] for prompt in document["prompts"] for case in prompt["cases"]), default=1)
    for prompt in document["prompts"]:
        for number, case in enumerate(prompt["cases"]):
            yield [
                Cell(prompt["name"] if number == 0 else "", prompt["verdict"]),
                Cell("default" if case["draft_len"] is None else str(case["draft_len"])),
                Cell(case["condition"]),
                Cell("", drawing=_divergence_bar(case, full)),
                Cell(explain_case(case) or "", case["verdict"]),
            ]


def _divergence_bar(case: Mapping[str, Any], full: int) -> str:
    """Green up to the first difference of the tokens, amber after a near-tie, red from an unexplained token on."""
    total, agreeing = case["num_tokens"], min(case["num_agreeing_tokens"], case["num_tokens"])
    fault = case["divergence"]["position"] if case["verdict"] == "different" and case["divergence"] else total
    fault = max(agreeing, min(fault, total))
    parts = [
        Part(agreeing, COLORS["identical"]),
        Part(fault - agreeing, COLORS["near-tie"]),
        Part(total - fault, COLORS["different"]),
    ]
    return bar(parts, full, f"{case['verdict']}: {agreeing} of {total} tokens agree")


def _bench_sections(document: Mapping[str, Any]) -> Iterator[str]:
    plan = document["plan"]
    yield heading(f"Bench of {document['deployment']}", 1)
    yield paragraph(
        f"{document['dtype']}, {plan['num_prompts']} prompts a round, {plan['rounds']} rounds, answers of at most "
        f"{plan['max_new_tokens']} tokens, {plan['cache']} prefix cache"
    )
    for key, title in _FIGURES.items():
        yield heading(title)
        yield table(
            [Cell("run"), Cell(""), Cell("median", is_number=True), Cell("p95", is_number=True)], _bars(document, key)
        )
    yield heading("Speculation")
    columns = [Cell("run"), *(Cell(title, is_number=True) for title in ("speed-up", "acceptance", "tokens per pass"))]
    yield table(columns, _speculation_rows(document))
    for concurrency, draft_len in document["recommended_max_draft_len"].items():
        advice = f"draft length {draft_len} is best" if draft_len else "speculation does not pay, use draft length 0"
        yield paragraph(f"At concurrency {concurrency} {advice}.")
    yield heading("Definitions")
    yield table([Cell("figure"), Cell("is")], ([Cell(k), Cell(v)] for k, v in document["definitions"].items()))
    yield from _ending(document)


def _bars(document: Mapping[str, Any], key: str) -> Iterator[list[Cell]]:
    runs = [run for run in document["runs"] if run[key] is not None]
    full = max((_median(run[key]) for run in runs), default=0.0)
    for run in runs:
        middle = _median(run[key])
        tail = f"{run[key]['p95']:.1f}" if isinstance(run[key], dict) else ""
        drawing = bar([Part(middle, _MODE_COLORS[run["mode"]])], full, f"{run_name(run)}: {middle:.1f}")
        yield [
            Cell(run_name(run)),
            Cell("", drawing=drawing),
            Cell(f"{middle:.1f}", is_number=True),
            Cell(tail, is_number=True),
        ]


def _median(value: Any) -> float:
    return float(value["p50"] if isinstance(value, dict) else value)


def _speculation_rows(document: Mapping[str, Any]) -> Iterator[list[Cell]]:
    factors = {(s["draft_len"], s["concurrency"]): s["factor"] for s in document["speedups"]}
    for run in document["runs"]:
        if run["mode"] != "speculative":
            continue
        factor = factors.get((run["max_draft_len"], run["concurrency"]))
        figures = (factor, run["acceptance_rate"], run["mean_acceptance_length"])
        yield [Cell(run_name(run)), *(Cell("" if f is None else f"{f:.3f}", is_number=True) for f in figures)]


def _ending(document: Mapping[str, Any]) -> Iterator[str]:
    yield heading("Again")
    yield code(document["command"])
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    yield paragraph(f"{document['schema']}; {versions}", "muted")
