"""The picture of a plan: speed-up over draft length, memory over context. The only user of matplotlib here."""

import io
from pathlib import Path
from typing import Any

from trtkit.artifacts import write_bytes
from trtkit.errors import InputError, MissingToolError
from trtkit.planning.memory import RUNTIME_BYTES
from trtkit.planning.model_plan import ModelPlan
from trtkit.planning.plan import Plan

_GIB = 1 << 30
_STEPS = 64


def write_plot(plan: Plan, path: Path) -> None:
    """Write the picture; the suffix of `path` chooses the format. Raises MissingToolError without matplotlib,
    InputError for a suffix that it has no format for.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingToolError(
            "a plot needs matplotlib", 'pip install "trtkit[plot]"', code="PLOT-MISSING", where=str(path)
        ) from None
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    formats = FigureCanvasAgg(figure).get_supported_filetypes()
    if path.suffix.removeprefix(".") not in formats:
        raise InputError(
            f"no picture has the suffix {path.suffix!r}",
            "write .png, .svg or .pdf",
            code="PLOT-SUFFIX",
            where=str(path),
        )
    left, right = figure.subplots(1, 2)
    _draw_gains(left, plan)
    _draw_memory(right, plan)
    figure.suptitle(plan.config.name)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format=path.suffix.removeprefix("."))
    write_bytes(path, picture.getvalue())


def _draw_gains(axes: Any, plan: Plan) -> None:
    axes.set_title("speed-up of drafting")
    axes.set_xlabel("draft tokens per round")
    axes.set_ylabel("speed-up over plain decoding")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    gains = plan.speculation.gains if plan.speculation else ()
    for rate in sorted({gain.acceptance_rate for gain in gains}):
        line = [(gain.max_draft_len, gain.speedup) for gain in gains if gain.acceptance_rate == rate]
        axes.plot(*zip(*line, strict=True), marker="o", markersize=3, label=f"acceptance {rate:g}")
    if gains:
        axes.legend(fontsize="small")
    else:
        axes.text(0.5, 0.5, "no draft", ha="center", va="center", transform=axes.transAxes)


def _draw_memory(axes: Any, plan: Plan) -> None:
    axes.set_title("memory of one GPU over context" if plan.given.gpu else "memory over context")
    axes.set_xlabel("tokens per sequence")
    axes.set_ylabel("GiB")
    models = list(plan.models.values()) if plan.shared or len(plan.models) == 1 else [plan.models["target"]]
    fixed = sum(max(model.rank_bytes) + model.buffer_bytes + RUNTIME_BYTES for model in models)
    longest = models[0].limits.built_max_seq_len
    tokens = [max(1, longest * step // _STEPS) for step in range(_STEPS + 1)]
    for sequences in sorted({1, plan.config.limits.max_batch_size}):
        used = [fixed + sequences * _kv_bytes(models, length) for length in tokens]
        label = f"{sequences} sequence{'s' if sequences > 1 else ''}"
        axes.plot(tokens, [total / _GIB for total in used], label=label)
    if plan.given.gpu:
        axes.axhline(plan.given.gpu.memory_bytes / _GIB, color="red", linewidth=0.8, label=plan.given.gpu.name)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def _kv_bytes(models: list[ModelPlan], tokens: int) -> int:
    """Of sequences of this length on the fullest GPU, all models together."""
    return sum(model.policy.tokens_held(tokens) * model.kv_bytes_per_token_of_rank for model in models)
