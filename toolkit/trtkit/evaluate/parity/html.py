"""A parity document as an HTML page. Knows the document, no results behind it."""

from collections.abc import Iterator, Mapping
from typing import Any

from trtkit.evaluate.parity.junit import explain_case
from trtkit.evaluate.parity.summary import diagnosis_lines, parity_summary
from trtkit.evaluate.reports.page import (
    COLORS,
    Cell,
    Part,
    bar,
    code,
    ending,
    heading,
    left_out,
    page,
    paragraph,
    table,
)


def parity_html(document: Mapping[str, Any]) -> str:
    """Verdict, the map of where answers part, every difference, the tolerance, and how to do it again."""
    return page(f"Parity of {document['deployment']}", _parity_sections(document))


def _parity_sections(document: Mapping[str, Any]) -> Iterator[str]:
    yield heading(f"Parity of {document['deployment']}", 1)
    yield paragraph(parity_summary(document), document["verdict"])
    for line in [*diagnosis_lines(document), *document.get("broken_shares", ())]:
        yield paragraph(line, "different")
    yield heading("Where answers part")
    yield paragraph("One bar per request: tokens that agree, then what follows a near-tie or a difference.", "muted")
    yield table(
        [Cell("prompt"), Cell("draft length"), Cell("condition"), Cell("tokens"), Cell("first difference")],
        _map_rows(document),
    )
    yield from left_out(document["skipped"])
    yield heading("Tolerance of a near-tie")
    yield code(document["tolerance"]["formula"])
    yield from ending(document)


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
