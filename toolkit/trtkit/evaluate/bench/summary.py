"""A bench document as Markdown and as JUnit XML, for CI. Knows the document, no results behind it."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from trtkit.evaluate.bench.baseline import measures_of, regression_line
from trtkit.evaluate.bench.document import run_name
from trtkit.evaluate.reports.junit_file import add_case, junit_text
from trtkit.evaluate.reports.markdown import code_span, left_out_table, markdown_table


def bench_markdown(document: Mapping[str, Any]) -> str:
    """The figures of every run, the advice, broken limits, what fell below the baseline, and how to do it again."""
    head = ("run", "TTFT p50 (ms)", "p95", "TPOT p50 (ms)", "p95", "tokens/s", "speed-up", "acceptance")
    factors = {(s["draft_len"], s["concurrency"]): s["factor"] for s in document["speedups"]}
    rows = []
    for run in document["runs"]:
        spreads = [(run[key] or {}).get(p) for key in ("ttft_ms", "tpot_ms") for p in ("p50", "p95")]
        factor = factors.get((run["max_draft_len"], run["concurrency"]))
        figures = [*spreads, run["tokens_per_s"], factor, run["acceptance_rate"]]
        rows.append([run_name(run), *("" if figure is None else f"{figure:.3g}" for figure in figures)])
    lines = [f"## Bench of {document['deployment']}", "", *markdown_table(head, rows), ""]
    for concurrency, draft_len in document["recommended_max_draft_len"].items():
        lines.append(f"- concurrency {concurrency}: {f'draft length {draft_len}' if draft_len else 'speculation off'}")
    lines += [f"- **{line}**" for line in document.get("broken_limits", ())]
    if "baseline" in document:
        kept = f"Baseline {code_span(document['baseline']['file'])}: {_baseline_sentence(document['baseline'])}"
        lines += ["", kept, ""]
        lines += [f"- {regression_line(each)}" for each in document["baseline"]["regressions"]]
    lines += ["", *left_out_table(document["skipped"])]
    return "\n".join([*lines, f"Again: {code_span(document['command'])}", ""])


def bench_junit(document: Mapping[str, Any], evidence: Sequence[str] = ()) -> str:
    """One case per measure that a baseline keeps, and one for the limits; those below what is allowed are failures and
    have the files of `evidence` attached."""
    suite = ElementTree.Element("testsuite", {"name": f"trtkit bench {document['deployment']}"})
    failed = {(r["run"], r["measure"]): r for r in document.get("baseline", {}).get("regressions", [])}
    taken = {
        (run, measure): value for run, all_of in measures_of(document).items() for measure, value in all_of.items()
    }
    for run, measure in dict.fromkeys([*taken, *failed]):
        regression = failed.get((run, measure))
        lines = [] if regression is None else [regression_line(regression)]
        case = add_case(suite, f"bench.{run}", measure, lines, "regression", evidence)
        if regression is None:
            ElementTree.SubElement(case, "system-out").text = f"{taken[run, measure]:.4g}"
    add_case(suite, "bench", "limits", list(document.get("broken_limits", ())), "limit", evidence)
    return junit_text(suite)


def _baseline_sentence(baseline: Mapping[str, Any]) -> str:
    if not baseline["regressions"]:
        return f"all {baseline['num_compared']} measures hold"
    return f"{len(baseline['regressions'])} of {baseline['num_compared']} measures are worse than allowed"
