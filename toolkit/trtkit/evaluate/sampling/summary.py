"""A sampling document as JUnit XML and as Markdown, for CI. Knows the document, no samples."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from trtkit.evaluate.reports.junit_file import add_case, add_skipped, junit_text
from trtkit.evaluate.reports.markdown import code_span, left_out_table, markdown_table


def sampling_junit(document: Mapping[str, Any], evidence: Sequence[str] = ()) -> str:
    """One case per prompt, draft length and token; a rejected distribution is a failure."""
    suite = ElementTree.Element("testsuite", {"name": f"trtkit parity sampling {document['deployment']}"})
    for test in document["tests"]:
        name = f"{test['name']} draft_len={test['draft_len']} token={test['position']}"
        failures = [_explained(test)] if test["decision"] == "different" else []
        add_case(suite, "sampling", name, failures, "distribution", evidence)
    add_skipped(suite, document["skipped"])
    return junit_text(suite)


def sampling_markdown(document: Mapping[str, Any]) -> str:
    """Verdict, every test, and how to do it again."""
    head = ("prompt", "draft length", "token", "samples", "p", "distance", "would find", "decision")
    rows = [
        (
            *(test[key] for key in ("name", "draft_len", "position", "num_samples")),
            f"{test['p_value']:.3g}",
            f"{test['distance']:.3f}",
            f"{test['detectable_distance']:.3f}",
            test["decision"],
        )
        for test in document["tests"]
    ]
    lines = [
        f"## Sampling parity of {document['deployment']}: {document['verdict']}",
        "",
        *markdown_table(head, rows),
        "",
    ]
    lines += left_out_table(document["skipped"])
    return "\n".join([*lines, f"Again: {code_span(document['command'])}", ""])


def _explained(test: Mapping[str, Any]) -> str:
    return (
        f"{test['num_samples']} samples lie {test['distance']:.3f} (total variation) from the target's distribution, "
        f"p = {test['p_value']:.2g}"
    )
