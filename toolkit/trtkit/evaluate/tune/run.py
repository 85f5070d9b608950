"""`trtkit tune`: from a build or URL and options to a report and the build's schedule. Knows the order of steps."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit import __version__
from trtkit.artifacts import disk_error, write_document
from trtkit.builds import Build
from trtkit.errors import InputError
from trtkit.evaluate.bench.load import Timer
from trtkit.evaluate.bench.prompts import bench_prompts
from trtkit.evaluate.endpoints.asynchronous import AsyncTritonEndpoint
from trtkit.evaluate.endpoints.deployment import Target, open_own_address, refuse_draft_lengths, refuse_llmapi
from trtkit.evaluate.endpoints.workers import run_loop
from trtkit.evaluate.oracle.record_choice import PromptChoice
from trtkit.evaluate.reports.figure import require_plots
from trtkit.evaluate.reports.files import json_text, refuse_unwritable, write_files
from trtkit.evaluate.tune.document import TuneContext, schedule_of, tune_document
from trtkit.evaluate.tune.html import tune_html
from trtkit.evaluate.tune.plot import plot_tune
from trtkit.evaluate.tune.prediction import predictor_of
from trtkit.evaluate.tune.sweep import Sweep, TunedLevel, TunePlan
from trtkit.progress import OnProgress, silent
from trtkit.serving.draft_schedule import FILE, DraftSchedule, input_digests, schedule_document

DEFAULT_BUDGET_S = 300.0
_NUM_PROMPTS = 64
_EVERY_LENGTH_UP_TO = 4


@dataclass(frozen=True)
class TuneOptions:
    """draft_lens: empty takes some up to the build's. concurrencies: empty takes powers of two up to the build's batch.
    apply: write the schedule into the build. out: empty takes BUILD/tune. command: how to repeat this."""

    choice: PromptChoice
    draft_lens: tuple[int, ...] = ()
    concurrencies: tuple[int, ...] = ()
    budget_s: float = DEFAULT_BUDGET_S
    cold: bool = True
    apply: bool = True
    plot: bool = True
    out: Path | None = None
    command: str = "trtkit tune"


def tune_deployment(
    target: Target,
    options: TuneOptions,
    *,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Find the draft length for every load, write the reports, and give the build its schedule.

    Raises InputError for a target without a draft, or a budget too small for any measurement; ServerError when the
    deployment fails.
    """
    plan, out = _plan(target, options), _out(target, options)
    served = target.build if options.apply else None
    for folder in (out, *([served.folder] if served is not None else [])):
        refuse_unwritable(folder)
    if options.plot:
        require_plots()
    timer = Timer(clock_ns)
    with open_own_address(target, on_progress) as address:
        levels, elapsed_s = run_loop(_sweep(address, plan, timer, on_progress))
    schedule = schedule_of(levels)
    if schedule is None:
        raise InputError(
            f"{plan.budget_s:g} s were over before the first round of requests",
            "give more with --budget, or ask for shorter answers with --max-new-tokens",
            code="TUNE-BUDGET",
        )
    document = tune_document(levels, plan, _context(target, options, elapsed_s))
    document["schedule_file"] = _apply(served, schedule) if served is not None else None
    _write(document, out, plot=options.plot)
    return document


async def _sweep(address: str, plan: TunePlan, timer: Timer, on_progress: OnProgress) -> tuple[list[TunedLevel], float]:
    async with AsyncTritonEndpoint(address, timer.now_ns) as endpoint:
        sweep = Sweep(endpoint, plan, timer, on_progress)
        return await sweep.run(), sweep.elapsed_s


def candidate_lengths(max_draft_len: int) -> tuple[int, ...]:
    """Every length up to 4, then steps of a half: enough to see where the gain ends. The largest is among them."""
    lengths = list(range(1, min(_EVERY_LENGTH_UP_TO, max_draft_len) + 1))
    while lengths[-1] < max_draft_len:
        lengths.append(min(max_draft_len, lengths[-1] * 3 // 2))
    return tuple(lengths)


def load_levels(max_batch_size: int) -> tuple[int, ...]:
    """Powers of two up to the largest batch, and that one."""
    powers = [2**power for power in range(max_batch_size.bit_length()) if 2**power <= max_batch_size]
    return tuple(dict.fromkeys([*powers, max_batch_size]))


def _plan(target: Target, options: TuneOptions) -> TunePlan:
    build = target.build
    refuse_llmapi(target)
    if build is None and not (options.draft_lens and options.concurrencies):
        raise InputError(
            "a URL does not say which draft lengths and loads it is made for",
            "give them with --draft-len and --concurrency, or give the build directory",
            code="TUNE",
        )
    refuse_draft_lengths(target, options.draft_lens or (1,))
    prompts, skipped = bench_prompts(build, options.choice, _NUM_PROMPTS)
    return TunePlan(
        draft_lens=options.draft_lens or candidate_lengths(build.config.max_draft_len if build else 1),
        concurrencies=tuple(dict.fromkeys(options.concurrencies))
        or load_levels(build.config.limits.max_batch_size if build else 1),
        prompts=prompts,
        skipped=skipped,
        budget_s=options.budget_s,
        cold=options.cold,
    )


def _context(target: Target, options: TuneOptions, elapsed_s: float) -> TuneContext:
    build = target.build
    return TuneContext(
        deployment=target.name,
        command=options.command,
        elapsed_s=elapsed_s,
        predictor=predictor_of(build) if build is not None else None,
        versions={"trtkit": __version__, **(build.manifest["versions"] if build is not None else {})},
    )


def _apply(build: Build, schedule: DraftSchedule) -> str:
    path = build.folder / FILE
    write_document(path, schedule_document(schedule, input_digests(build.manifest)))
    return str(path)


def _out(target: Target, options: TuneOptions) -> Path:
    if options.out is not None:
        return options.out
    return target.build.folder / "tune" if target.build is not None else Path("tune")


def _write(document: dict[str, Any], out: Path, *, plot: bool) -> None:
    write_files(out, {"report.json": json_text(document), "report.html": tune_html(document)})
    try:
        if plot:
            plot_tune(document, out / "tune.png")
    except OSError as error:
        raise disk_error(error, out) from error
