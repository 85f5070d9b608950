"""The sweep as a picture: speed-up over draft length, measured and predicted. Knows the document and matplotlib."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtkit.evaluate.reports.chart import PALETTE
from trtkit.evaluate.reports.figure import new_figure


def plot_tune(document: Mapping[str, Any], out: Path) -> None:
    """Write a PNG: one colour per load, whiskers for the 95 % interval, dashes for what the plan predicts.

    Raises MissingToolError without matplotlib.
    """
    figure = new_figure(7, 4.2)
    axis = figure.add_subplot()
    axis.axhline(1.0, color="#9aa4b0", linewidth=1)
    for number, level in enumerate(document["levels"]):
        color, arms = PALETTE[number % len(PALETTE)], [arm for arm in level["arms"] if arm["speedup"] is not None]
        lengths, heights = [arm["draft_len"] for arm in arms], [arm["speedup"] for arm in arms]
        # A bootstrap interval need not hold the point estimate; a whisker has no negative length.
        below = [max(0.0, arm["speedup"] - arm["speedup_interval"][0]) for arm in arms]
        above = [max(0.0, arm["speedup_interval"][1] - arm["speedup"]) for arm in arms]
        name = f"{level['concurrency']} under way"
        axis.errorbar(lengths, heights, yerr=[below, above], color=color, marker="o", capsize=3, label=name)
        predicted = [(arm["draft_len"], arm["predicted_speedup"]) for arm in arms if arm["predicted_speedup"]]
        if predicted:
            axis.plot(*zip(*predicted, strict=True), color=color, linestyle="--", linewidth=1)
    axis.set(xlabel="draft length", ylabel="speed-up over the plain target", ylim=(0, None))
    axis.set_title(f"{document['deployment']} (dashed: predicted)", fontsize=10)
    axis.legend(frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)
