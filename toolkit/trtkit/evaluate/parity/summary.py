"""A parity document as Markdown, for the summary page of a CI job. Knows the document, no results behind it."""

from collections.abc import Mapping
from typing import Any

from trtkit.evaluate.parity.junit import explain_case
from trtkit.evaluate.reports.markdown import code_span, left_out_table, markdown_table


def parity_markdown(document: Mapping[str, Any]) -> str:
    """Verdict, counts, every divergence, and how to do it again."""
    lines = [f"## Parity of {document['deployment']}: {document['verdict']}", "", parity_summary(document), ""]
    lines += [f"- **{line}**" for line in [*diagnosis_lines(document), *document.get("broken_shares", ())]]
    lines += [f"- {line}" for line in window_lines(document)]
    lines.append("")  # else the table below is text of the last line
    differences = [
        (prompt["name"], case["draft_len"], case["condition"], case["verdict"], text)
        for prompt in document["prompts"]
        for case in prompt["cases"]
        if (text := explain_case(case)) is not None
    ]
    if differences:
        lines += [
            *markdown_table(("prompt", "draft length", "condition", "verdict", "first difference"), differences),
            "",
        ]
    lines += left_out_table(document["skipped"])
    lines += [f"Tolerance: `{document['tolerance']['formula']}`", "", f"Again: {code_span(document['command'])}", ""]
    return "\n".join(lines)


def parity_summary(document: Mapping[str, Any]) -> str:
    """The one-line summary."""
    num_prompts = len(document["prompts"])
    text = (
        f"{document['verdict']}: {document['identical']} of {num_prompts} prompts identical, "
        f"{document['near_tie']} near-tie, {document['different']} different ({document['num_requests']} requests"
    )
    return text + (f", {len(document['skipped'])} prompts left out)" if document["skipped"] else ")")


def window_lines(document: Mapping[str, Any]) -> list[str]:
    """What was judged past the window of rolling sinks; nothing where no answer passes it."""
    past = document["past_window"]
    if past is None or not (past["prompts"] or past["num_requests_left_out"]):
        return []
    line = (
        f"{len(past['prompts'])} prompts pass the window of {past['sink_tokens']} + {past['window_tokens']} tokens: "
        f"held to what the oracle answers to the tokens that are kept"
    )
    left_out = past["num_requests_left_out"]
    return [line + (f"; {left_out} requests left out, since nothing tells what was dropped when" if left_out else "")]


def diagnosis_lines(document: Mapping[str, Any]) -> list[str]:
    """What the differences point at, one line per fault."""
    return [f"{found['fault']}: {found['evidence']}" for found in document["diagnosis"]]
