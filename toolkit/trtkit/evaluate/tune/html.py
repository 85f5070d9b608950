"""A tune document as an HTML page: the schedule, every arm, measured and predicted speed-up. Knows the document."""

from collections.abc import Iterator, Mapping
from typing import Any

from trtkit.evaluate.reports.chart import Axis, Line, chart
from trtkit.evaluate.reports.page import Cell, ending, heading, left_out, page, paragraph, table


def tune_html(document: Mapping[str, Any]) -> str:
    """What to draft at which load, the figures behind it, and how to do it again."""
    return page(f"Draft lengths of {document['deployment']}", _sections(document))


def advice_of(level: Mapping[str, Any]) -> str:
    """One sentence on one load."""
    load = f"{level['concurrency']} under way"
    if level["recommended"] is None:
        return f"{load}: not measured, the budget was over"
    found = f"draft length {level['recommended']}" if level["recommended"] else "off, speculation does not pay"
    predicted = level["predicted"]
    plan = "" if predicted is None else f" (the plan says {predicted or 'off'})"
    return f"{load}: {found}{plan}{'' if level['is_complete'] else '; cut short by the budget'}"


def _sections(document: Mapping[str, Any]) -> Iterator[str]:
    yield heading(f"Draft lengths of {document['deployment']}", 1)
    yield paragraph(f"{document['elapsed_s']:.0f} of {document['budget_s']:.0f} s, {document['cache']} prefix cache")
    for level in document["levels"]:
        yield paragraph(advice_of(level))
    yield heading("Speed-up over the plain target")
    yield chart(list(_lines(document)), Axis("draft length", low=0), Axis("speed-up", low=0))
    yield heading("Every length that was measured")
    titles = (
        "under way",
        "draft length",
        "requests",
        "tokens/s",
        "speed-up",
        "95 % interval",
        "predicted",
        "acceptance",
    )
    yield table([Cell(title, is_number=True) for title in titles], _rows(document))
    yield from left_out(document["skipped"])
    yield heading("Definitions")
    yield table([Cell("figure"), Cell("is")], ([Cell(k), Cell(v)] for k, v in document["definitions"].items()))
    yield from ending(document)


def _lines(document: Mapping[str, Any]) -> Iterator[Line]:
    for key, name in (("speedup", "measured"), ("predicted_speedup", "predicted")):
        for level in document["levels"]:
            points = sorted((arm["draft_len"], arm[key]) for arm in level["arms"] if arm[key] is not None)
            if points:
                yield Line(f"{name} at {level['concurrency']}", [(0, 1.0), *points])


def _rows(document: Mapping[str, Any]) -> Iterator[list[Cell]]:
    for level in document["levels"]:
        for arm in level["arms"]:
            low, high = arm["speedup_interval"] or (None, None)
            texts = (
                str(level["concurrency"]),
                str(arm["draft_len"]),
                str(arm["num_requests"]),
                f"{arm['tokens_per_s']:.1f}",
                _number(arm["speedup"]),
                "" if low is None else f"{low:.2f} to {high:.2f}",
                _number(arm["predicted_speedup"]),
                _number(arm["acceptance_rate"]),
            )
            yield [Cell(text, is_number=True) for text in texts]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
