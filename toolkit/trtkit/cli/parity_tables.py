"""The reports of `trtkit parity` as tables on a terminal. Knows the documents, runs nothing."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from trtkit.cli.left_out import left_out
from trtkit.evaluate.checkpoint.drift import shown
from trtkit.evaluate.checkpoint.summary import is_explained
from trtkit.evaluate.parity.junit import explain_case
from trtkit.evaluate.parity.summary import diagnosis_lines, parity_summary, window_lines

_STYLES = {"identical": "green", "near-tie": "yellow", "different": "bold red"}


def render_samples(document: Mapping[str, Any]) -> Group:
    """One row per test."""
    table = Table("prompt", "draft length", "token", "samples", "p", "distance", "would find", box=None, pad_edge=False)
    for test in document["tests"]:
        style = "bold red" if test["decision"] == "different" else "green"
        cells = [str(test[key]) for key in ("draft_len", "position", "num_samples")]
        distances = [f"{test[key]:.3f}" for key in ("distance", "detectable_distance")]
        table.add_row(Text(test["name"]), *cells, Text(f"{test['p_value']:.3g}", style=style), *distances)
    same = document["same_draws"]
    notes = [] if same is None else [Text(f"the same tokens with and without drafts: {same:.1%} of the seeds")]
    used = Text(f"{document['num_samples']} of at most {document['most_samples']} samples were needed")
    return Group(table, *left_out(document["skipped"]), *notes, used, Text(document["verdict"], style="bold"))


def render_layers(document: Mapping[str, Any]) -> Group:
    """One row per part of a layer, then the figures over all positions."""
    table = Table("after", "relative error", "explained", box=None, pad_edge=False)
    for point in document["points"]:
        style = "green" if is_explained(point) else "bold red"
        table.add_row(point["name"], Text(shown(point["error"]), style=style), f"{point['tolerance']:.3g}")
    perplexity = document["perplexity"]
    figures = (
        f"{document['num_positions']} positions: same best token {document['top1_agreement']:.2%}, "
        f"KL {shown(document['mean_kl'])} nats (largest {shown(document['max_kl'])}), "
        f"perplexity {shown(perplexity['deployed'], '.4f')} (original {shown(perplexity['oracle'], '.4f')})"
    )
    return Group(
        table,
        *left_out(document["skipped"]),
        Text(figures),
        Text(f"{document['verdict']} ({document['dtype']})", style="bold"),
    )


def render(document: Mapping[str, Any]) -> Group:
    """One row per prompt, one line per difference, and the summary."""
    table = Table("prompt", "tokens", "requests", "first difference", box=None, pad_edge=False)
    for prompt in document["prompts"]:
        cases = Text("  ").join(Text(_case_name(case), style=_STYLES[case["verdict"]]) for case in prompt["cases"])
        tokens = str(max(case["num_tokens"] for case in prompt["cases"]))
        reasons = dict.fromkeys(text for case in prompt["cases"] if (text := explain_case(case)))
        table.add_row(Text(prompt["name"]), tokens, cases, Text("\n".join(reasons)))
    legend = Text.assemble(*((f"{verdict}  ", style) for verdict, style in _STYLES.items()))
    notes = left_out(document["skipped"])
    notes += [Text(line) for line in window_lines(document)]
    faults = [Text(line, style="bold red") for line in diagnosis_lines(document)]
    summary = Text(parity_summary(document), style="bold")
    return Group(table, legend, *notes, Text(_acceptance(document)), *faults, summary)


def _case_name(case: Mapping[str, Any]) -> str:
    speculation = {0: "plain", None: "default"}.get(case["draft_len"], f"K={case['draft_len']}")
    return f"{speculation} {case['condition']}"


def _acceptance(document: Mapping[str, Any]) -> str:
    rates = {cache: rate for cache, rate in document["acceptance"].items() if rate is not None}
    if not any(case["num_draft_tokens"] for prompt in document["prompts"] for case in prompt["cases"]):
        return "no drafts were made"
    if not rates:
        return "acceptance rate: no prompt met a draft length cold, which takes more prompts"
    return "acceptance rate of the same prompts: " + ", ".join(f"{cache} {rate:.3f}" for cache, rate in rates.items())
