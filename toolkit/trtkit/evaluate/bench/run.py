"""`trtkit bench`: from a build or URL and options to figures, reports and a plot. Knows the order of steps."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtkit import __version__
from trtkit.artifacts import disk_error, write_text
from trtkit.builds import Build
from trtkit.checkpoints.stop_ids import read_stop_ids
from trtkit.errors import DifferenceError, InputError
from trtkit.evaluate.bench.baseline import (
    baseline_of,
    compare,
    read_baseline,
    refuse_unplanned,
    regression_line,
    run_key,
)
from trtkit.evaluate.bench.document import BenchContext, bench_document, load_fields
from trtkit.evaluate.bench.html import bench_html
from trtkit.evaluate.bench.limits import LatencyLimits, broken_limits
from trtkit.evaluate.bench.load import Timer, poisson_times
from trtkit.evaluate.bench.plan import BenchPlan, BenchRun, Load, Mode, plan_loads, run_bench
from trtkit.evaluate.bench.plot import plot_bench
from trtkit.evaluate.bench.prompts import bench_prompts, trace_prompts
from trtkit.evaluate.bench.summary import bench_junit, bench_markdown
from trtkit.evaluate.bench.traffic import prompts_jsonl, trace_jsonl
from trtkit.evaluate.endpoints.asynchronous import AsyncTritonEndpoint, Threaded
from trtkit.evaluate.endpoints.deployment import Target, open_own_address, refuse_draft_lengths, refuse_llmapi
from trtkit.evaluate.endpoints.endpoint import AsyncEndpoint, Endpoint
from trtkit.evaluate.endpoints.workers import run_loop
from trtkit.evaluate.oracle.configured_file import configured_file
from trtkit.evaluate.oracle.record import SkippedPrompt
from trtkit.evaluate.oracle.record_choice import PromptChoice
from trtkit.evaluate.oracle.sources import unchanged_source
from trtkit.evaluate.reports.figure import require_plots
from trtkit.evaluate.reports.files import json_text, refuse_unwritable, write_files
from trtkit.progress import OnProgress, silent

DEFAULT_REQUESTS = 8
_LEAST_RATE, _MOST_RATE = 1e-6, 1e6


@dataclass(frozen=True)
class BenchOptions:
    """draft_lens: empty takes the build's. concurrencies: closed loops; rates: open loops with Poisson arrivals per
    second; trace: a file of requests with their own times; none of the three is one closed loop of one. num_requests:
    per load and round; prompts are repeated to reach it. baseline: a file to compare with, or to write when
    update_baseline is set; None takes the build's, if it names one. limits: override the build's. out: empty takes
    BUILD/bench. command: how to repeat this bench."""

    choice: PromptChoice
    draft_lens: tuple[int, ...] = ()
    concurrencies: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    trace: Path | None = None
    num_requests: int = DEFAULT_REQUESTS
    rounds: int = 2
    cold: bool = True
    seed: int = 0
    with_oracle: bool = False
    plot: bool = True
    baseline: Path | None = None
    update_baseline: bool = False
    limits: LatencyLimits = field(default_factory=LatencyLimits)
    out: Path | None = None
    command: str = "trtkit bench"


def bench_deployment(
    target: Target,
    options: BenchOptions,
    *,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Measure a deployment with speculation off and on in one run; write the reports and a plot.

    Raises InputError for options that do not fit the target, ServerError when the deployment fails.
    """
    _refuse_unfit(target, options)
    baseline_path = _baseline_path(target, options)
    standing = _standing_baseline(baseline_path, options)
    plan = _plan(target, options)
    if standing is not None and options.update_baseline:
        refuse_unplanned(standing, [run_key(load_fields(load)) for load in plan.loads])
    out = options.out or (target.build.folder / "bench" if target.build is not None else Path("bench"))
    _refuse_unwritable(out, options)
    with open_own_address(target, on_progress) as address:
        runs = run_loop(_run(target, address, plan, Timer(clock_ns), on_progress))
    document = bench_document(runs, plan, _context(target, options))
    limits = options.limits.over(target.build)
    document |= {"limits": asdict(limits), "broken_limits": list(broken_limits(document, limits))}
    if standing is not None and not options.update_baseline:
        document["baseline"] = {"file": str(baseline_path), **compare(document, standing)}
    _write(document, plan, out, plot=options.plot)
    if baseline_path and options.update_baseline and not document["broken_limits"]:
        write_baseline(baseline_path, document)
    return document


def _refuse_unwritable(out: Path, options: BenchOptions) -> None:
    """What would be missing when all is measured."""
    refuse_unwritable(out)
    if options.plot:
        require_plots()


def _standing_baseline(path: Path | None, options: BenchOptions) -> dict[str, Any] | None:
    """The baseline to compare with, or the one to be made again; read before anything is measured."""
    if path is None or (options.update_baseline and not path.exists()):
        return None
    return read_baseline(path)


def write_baseline(path: Path, document: dict[str, Any]) -> None:
    """Make this bench the baseline; see baseline_of for what a standing one keeps. Raises BuildError when the file
    cannot be written, InputError when a standing file is no baseline."""
    standing = read_baseline(path) if path.exists() else None
    try:
        write_text(path, json_text(baseline_of(document, standing)))
    except OSError as error:
        raise disk_error(error, path) from error


def refuse_regression(document: dict[str, Any]) -> None:
    """Raise DifferenceError when a baseline was given and a measure fell below what it allows."""
    regressions = document.get("baseline", {}).get("regressions", [])
    if not regressions:
        return
    lines = "\n".join(f"  {regression_line(regression)}" for regression in regressions)
    raise DifferenceError(
        f"{len(regressions)} of {document['baseline']['num_compared']} measures are below the baseline:\n{lines}",
        "find what made them worse; if the change is wanted, run again with --update-baseline",
        code="BASELINE",
    )


def _refuse_unfit(target: Target, options: BenchOptions) -> None:
    refuse_llmapi(target)
    if options.with_oracle and target.build is None:
        raise InputError(
            "transformers cannot be measured for a URL", "give the build directory, or leave --oracle out", code="BENCH"
        )
    for rate in options.rates:
        if not _LEAST_RATE <= rate <= _MOST_RATE:
            raise InputError(
                f"{rate:g} requests per second cannot be planned",
                f"give a rate from {_LEAST_RATE:g} to {_MOST_RATE:g}",
                code="BENCH",
            )
    if options.trace is not None and (options.concurrencies or options.rates):
        raise InputError(
            "a trace has its own times", "leave --concurrency and --rate out, or give --prompts instead", code="BENCH"
        )
    most = max(options.concurrencies, default=1)
    if most > options.num_requests:
        raise InputError(
            f"{options.num_requests} requests a round are never {most} under way at once",
            f"give --requests {most} or more, or a smaller --concurrency",
            code="BENCH",
        )
    refuse_draft_lengths(target, options.draft_lens)


def _plan(target: Target, options: BenchOptions) -> BenchPlan:
    build = target.build
    draft_lens = options.draft_lens or ((build.config.max_draft_len,) if build is not None else ())
    skipped: tuple[SkippedPrompt, ...] = ()
    if options.trace is not None:
        paces: tuple[int | None, ...] = (None,)
        prompts = trace_prompts(build, options.choice, options.trace)
    else:
        paces = options.concurrencies or (() if options.rates else (1,))
        prompts, skipped = bench_prompts(build, options.choice, options.num_requests)
    loads = plan_loads(draft_lens, paces, options.rates, with_oracle=options.with_oracle)
    return BenchPlan(loads, prompts, options.rounds, cold=options.cold, seed=options.seed, skipped=skipped)


async def _run(
    target: Target, address: str, plan: BenchPlan, timer: Timer, on_progress: OnProgress
) -> tuple[BenchRun, ...]:
    async with _endpoints(target, address, plan.loads, timer.now_ns) as endpoints:
        return await run_bench(endpoints, plan, timer, on_progress)


@asynccontextmanager
async def _endpoints(
    target: Target, address: str, loads: tuple[Load, ...], clock_ns: Callable[[], int]
) -> AsyncIterator[dict[Mode, AsyncEndpoint]]:
    async with AsyncTritonEndpoint(address, clock_ns) as endpoint:
        endpoints: dict[Mode, AsyncEndpoint] = {"target": endpoint, "speculative": endpoint}
        if any(load.mode == "oracle" for load in loads):
            assert target.build is not None, "refused before"
            endpoints["oracle"] = Threaded(_oracle_endpoint(target.build, clock_ns))
        yield endpoints


def _oracle_endpoint(build: Build, clock_ns: Callable[[], int]) -> Endpoint:
    from trtkit.evaluate.bench.oracle_endpoint import OracleEndpoint
    from trtkit.evaluate.oracle.oracle import Oracle
    from trtkit.prompts.encoding import PromptEncoder

    folder = unchanged_source(build, "target")
    oracle = Oracle.load(folder, dtype=build.config.target.dtype)
    return OracleEndpoint(oracle, PromptEncoder.load(folder), read_stop_ids(folder)[0], clock_ns)


def _context(target: Target, options: BenchOptions) -> BenchContext:
    build = target.build
    return BenchContext(
        deployment=target.name,
        command=options.command,
        dtype=build.config.target.dtype if build is not None else "unknown",
        versions={"trtkit": __version__, **(build.manifest["versions"] if build is not None else {})},
    )


def _baseline_path(target: Target, options: BenchOptions) -> Path | None:
    path = options.baseline or configured_file(target.build, "baseline", is_made=options.update_baseline)
    if path is None and options.update_baseline:
        raise InputError("there is no baseline to update", "say where with --baseline FILE", code="BASELINE")
    return path


def _write(document: dict[str, Any], plan: BenchPlan, out: Path, *, plot: bool) -> None:
    texts = {
        "report.json": json_text(document),
        "report.html": bench_html(document),
        "summary.md": bench_markdown(document),
        "junit.xml": bench_junit(document, [str(out / "report.html"), str(out / "report.json")]),
        "prompts.jsonl": prompts_jsonl(plan.prompts),
    }
    for rate in sorted({load.rate for load in plan.loads if load.rate is not None}):
        times_s = poisson_times(rate, len(plan.prompts), plan.seed)
        texts[f"trace-{rate:g}.jsonl"] = trace_jsonl(plan.prompts, times_s)
    write_files(out, texts)
    try:
        if plot:
            plot_bench(document, out / "bench.png")
    except OSError as error:
        raise disk_error(error, out) from error
