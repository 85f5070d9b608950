"""The bench as a picture: throughput and latency by draft length and concurrency. Knows the document and matplotlib."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtkit.evaluate.bench.document import run_name
from trtkit.evaluate.reports.figure import new_figure

_PANELS = (
    ("tokens_per_s", "tokens per second"),
    ("ttft_ms", "time to first token, ms"),
    ("tpot_ms", "time per token after it, ms"),
)


def plot_bench(document: Mapping[str, Any], out: Path) -> None:
    """Write a PNG with one bar per run and, for latencies, a whisker up to the 95th percentile.

    Raises MissingToolError without matplotlib.
    """
    runs = [run for run in document["runs"] if run["tokens_per_s"] is not None]
    figure = new_figure(4 + 1.1 * len(runs), 4.2)
    axes = figure.subplots(1, len(_PANELS), squeeze=False)[0]
    for axis, (key, title) in zip(axes, _PANELS, strict=True):
        heights = [_middle(run[key]) for run in runs]
        whiskers = [_above(run[key]) for run in runs]
        axis.bar(range(len(runs)), heights, yerr=[[0.0] * len(runs), whiskers], color=[_color(run) for run in runs])
        axis.set_xticks(range(len(runs)), [run_name(run) for run in runs], rotation=60, ha="right", fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{document['deployment']}, {document['dtype']}, {document['plan']['cache']} prompts", fontsize=11)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)


def _color(run: Mapping[str, Any]) -> str:
    return {"oracle": "#9a9a9a", "target": "#33638d", "speculative": "#e08a2e"}[run["mode"]]


def _middle(value: Any) -> float:
    if value is None:
        return 0.0
    return float(value["p50"] if isinstance(value, dict) else value)


def _above(value: Any) -> float:
    return float(value["p95"] - value["p50"]) if isinstance(value, dict) else 0.0
