"""A checkpoint document as JUnit XML and as Markdown, for CI. Knows the document, no model."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from trtkit.evaluate.checkpoint.drift import shown
from trtkit.evaluate.reports.junit_file import add_case, add_skipped, junit_text
from trtkit.evaluate.reports.markdown import code_span, left_out_table, markdown_table


def checkpoint_junit(document: Mapping[str, Any], evidence: Sequence[str] = ()) -> str:
    """One case per place where the two are compared; beyond what rounding explains it is a failure."""
    name = f"trtkit parity checkpoint {document['deployment']} {document['role']}"
    suite = ElementTree.Element("testsuite", {"name": name})
    for point in document["points"]:
        failures = [] if is_explained(point) else [explain_point(point)]
        add_case(suite, f"checkpoint.{document['role']}", point["name"], failures, "drift", evidence)
    add_skipped(suite, document["skipped"])
    return junit_text(suite)


def checkpoint_markdown(document: Mapping[str, Any]) -> str:
    """Verdict, where the fault is, the figures over all positions, and how to do it again."""
    fault = document["first_fault"]
    lines = [f"## Checkpoint parity of {document['deployment']}, {document['role']}: {document['verdict']}", ""]
    if fault is not None:
        lines += [f"- **{fault['name']}: {explain_point(fault)}; look at {', '.join(fault['tensors'])}**", ""]
    lines += [*markdown_table(("figure", "value"), list(figures_of(document).items())), ""]
    lines += left_out_table(document["skipped"])
    return "\n".join([*lines, f"Again: {code_span(document['command'])}", ""])


def figures_of(document: Mapping[str, Any]) -> dict[str, str]:
    """The figures over all positions, by their names."""
    return {
        "positions": str(document["num_positions"]),
        "same best token": f"{document['top1_agreement']:.2%}",
        "KL, mean (nats)": shown(document["mean_kl"]),
        "KL, largest": shown(document["max_kl"]),
        "largest logit error": shown(document["max_logit_error"]),
        "perplexity": shown(document["perplexity"]["deployed"], ".4f"),
        "original's": shown(document["perplexity"]["oracle"], ".4f"),
    }


def is_explained(point: Mapping[str, Any]) -> bool:
    """Whether rounding explains what the two differ by at a place."""
    return point["error"] is not None and point["error"] <= point["tolerance"]


def explain_point(point: Mapping[str, Any]) -> str:
    """One line: the error at a place, and what rounding explains there."""
    return f"relative error {shown(point['error'])}, rounding explains {point['tolerance']:.3g}"
