"""`trtkit bench`: from a build or URL and options to figures, a report and a plot. Knows the order of steps."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit import __version__
from trtkit.artifacts import disk_error, write_text
from trtkit.builds import Build
from trtkit.checkpoints.stop_ids import read_stop_ids
from trtkit.errors import DifferenceError, InputError
from trtkit.evaluate.baseline import baseline_of, compare, read_baseline
from trtkit.evaluate.bench import BenchPlan, Mode, plan_loads, run_bench
from trtkit.evaluate.bench_plot import plot_bench
from trtkit.evaluate.deployment import Target, open_endpoint, refuse_drafts_without_draft
from trtkit.evaluate.endpoint import Endpoint
from trtkit.evaluate.libraries import require_oracle_libraries
from trtkit.evaluate.prompts import Prompt
from trtkit.evaluate.record_choice import PromptChoice
from trtkit.evaluate.reports.bench_document import BenchContext, bench_document
from trtkit.evaluate.reports.html import bench_html
from trtkit.evaluate.sources import unchanged_source
from trtkit.progress import OnProgress, silent

DEFAULT_REQUESTS = 8


@dataclass(frozen=True)
class BenchOptions:
    """draft_lens: empty takes the build's. num_requests: per load and round; prompts are repeated to reach it.
    baseline: a file to compare with, or to write when update_baseline is set; None takes the build's, if it names one.
    out: empty takes BUILD/bench. command: how to repeat this bench."""

    choice: PromptChoice
    draft_lens: tuple[int, ...] = ()
    concurrencies: tuple[int, ...] = (1,)
    num_requests: int = DEFAULT_REQUESTS
    rounds: int = 2
    cold: bool = True
    with_oracle: bool = False
    plot: bool = True
    baseline: Path | None = None
    update_baseline: bool = False
    out: Path | None = None
    command: str = "trtkit bench"


def bench_deployment(
    target: Target,
    options: BenchOptions,
    *,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Measure a deployment with speculation off and on in one run; write report.json, report.html, bench.png.

    Raises InputError for options that do not fit the target, ServerError when the deployment fails.
    """
    _refuse_unfit(target, options)
    baseline_path = _baseline_path(target, options)
    standing = read_baseline(baseline_path) if baseline_path and not options.update_baseline else None
    draft_lens = options.draft_lens or ((target.build.config.max_draft_len,) if target.build is not None else ())
    loads = plan_loads(draft_lens, options.concurrencies, with_oracle=options.with_oracle)
    length = options.choice.length(target.build) if target.build is not None else options.choice.max_new_tokens or 64
    plan = BenchPlan(loads, _texts(target, options), length, options.rounds, cold=options.cold)
    with _endpoints(target, options, clock_ns, on_progress) as endpoints:
        runs = run_bench(endpoints, plan, clock_ns, on_progress)
    build = target.build
    context = BenchContext(
        deployment=target.name,
        command=options.command,
        dtype=build.config.target.dtype if build is not None else "unknown",
        versions={"trtkit": __version__, **(build.manifest["versions"] if build is not None else {})},
    )
    document = bench_document(runs, plan, context)
    if standing is not None:
        document["baseline"] = {"file": str(baseline_path), **compare(document, standing)}
    _write(document, _out(target, options), plot=options.plot)
    if baseline_path and options.update_baseline:
        write_baseline(baseline_path, document)
    return document


def write_baseline(path: Path, document: dict[str, Any]) -> None:
    """Make this bench the baseline. Raises BuildError when the file cannot be written."""
    try:
        _write_json(path, baseline_of(document))
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


def regression_line(regression: dict[str, Any]) -> str:
    """One line of text on one regression."""
    value = "not measured" if regression["value"] is None else f"{regression['value']:.3f}"
    return (
        f"{regression['run']}: {regression['measure']} {value}, baseline {regression['baseline']:.3f}, "
        f"allowed from {regression['allowed']:.3f}"
    )


def _refuse_unfit(target: Target, options: BenchOptions) -> None:
    if options.with_oracle and target.build is None:
        raise InputError(
            "transformers cannot be measured for a URL", "give the build directory, or leave --oracle out", code="BENCH"
        )
    refuse_drafts_without_draft(target, options.draft_lens)


def _texts(target: Target, options: BenchOptions) -> tuple[str, ...]:
    """The texts to send, chats rendered by the build's template; those it cannot render or take are left out."""
    prompts = options.choice.read(target.build)
    texts = [prompt.text for prompt in prompts if prompt.text is not None]
    if target.build is not None:
        texts = _rendered(target.build, prompts)
    if not texts:
        raise InputError("none of the prompts can be sent", "give others with --prompts", code="PROMPTS")
    return tuple(itertools.islice(itertools.cycle(texts), options.num_requests))


def _rendered(build: Build, prompts: list[Prompt]) -> list[str]:
    require_oracle_libraries()
    # transformers takes a second to import; --help and a URL do without it.
    from trtkit.evaluate.encoding import PromptEncoder
    from trtkit.evaluate.recording import encode_prompts

    room_for_tag = 16
    encoder = PromptEncoder.load(build.tokenizer)
    encoded, _ = encode_prompts(encoder, prompts, build.config.limits.max_input_len - room_for_tag)
    return [sent.text for _, sent in encoded]


@contextmanager
def _endpoints(
    target: Target, options: BenchOptions, clock_ns: Callable[[], int], on_progress: OnProgress
) -> Iterator[dict[Mode, Endpoint]]:
    with open_endpoint(target, clock_ns, on_progress) as endpoint:
        endpoints: dict[Mode, Endpoint] = {"target": endpoint, "speculative": endpoint}
        if options.with_oracle:
            assert target.build is not None, "refused before"
            endpoints["oracle"] = _oracle_endpoint(target.build, clock_ns)
        yield endpoints


def _oracle_endpoint(build: Build, clock_ns: Callable[[], int]) -> Endpoint:
    from trtkit.evaluate.encoding import PromptEncoder
    from trtkit.evaluate.oracle import Oracle
    from trtkit.evaluate.oracle_endpoint import OracleEndpoint

    folder = unchanged_source(build, "target")
    oracle = Oracle.load(folder, dtype=build.config.target.dtype)
    return OracleEndpoint(oracle, PromptEncoder.load(folder), read_stop_ids(folder)[0], clock_ns)


def _out(target: Target, options: BenchOptions) -> Path:
    if options.out is not None:
        return options.out
    return target.build.folder / "bench" if target.build is not None else Path("bench")


def _baseline_path(target: Target, options: BenchOptions) -> Path | None:
    configured = target.build.config.verification.baseline if target.build is not None else None
    path = options.baseline or (Path(configured) if configured else None)
    if path is None and options.update_baseline:
        raise InputError("there is no baseline to update", "say where with --baseline FILE", code="BASELINE")
    return path


def _write_json(path: Path, document: dict[str, Any]) -> None:
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def _write(document: dict[str, Any], out: Path, *, plot: bool) -> None:
    try:
        _write_json(out / "report.json", document)
        write_text(out / "report.html", bench_html(document))
        if plot:
            plot_bench(document, out / "bench.png")
    except OSError as error:
        raise disk_error(error, out) from error
