"""Parity, sampling and latency as assertions for users' own tests. Knows limits and messages; measures nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trtkit.builds import Build
from trtkit.errors import DifferenceError
from trtkit.evaluate.bench_run import BenchOptions, bench_deployment
from trtkit.evaluate.deployment import Target
from trtkit.evaluate.parity_run import CheckOptions, check_parity, refuse_difference
from trtkit.evaluate.record_choice import PromptChoice
from trtkit.evaluate.reports.bench_document import run_name
from trtkit.evaluate.reports.markdown import parity_markdown


@dataclass(frozen=True)
class LatencyLimits:
    """What a bench must keep; None leaves a figure free. Medians count; the last two are asked of drafting runs."""

    max_ttft_ms: float | None = None
    max_tpot_ms: float | None = None
    min_speedup: float | None = None
    min_acceptance_rate: float | None = None


def assert_parity(
    build: Build, choice: PromptChoice | None = None, *, min_identical: float = 0.0, in_process: bool = False
) -> dict[str, Any]:
    """Fail with the whole report when an answer is different, or too few prompts are identical (a share).

    Returns the document of `trtkit parity check --json`.
    """
    options = CheckOptions(choice or PromptChoice(), in_process=in_process)
    document = check_parity(Target(str(build.folder), build), options)
    try:
        refuse_difference(document, min_identical)
    except DifferenceError as error:
        raise AssertionError(f"{error}\n\n{parity_markdown(document)}") from None
    return document


def assert_sampling(build: Build, choice: PromptChoice, *, distance: float = 0.2, seed: int = 0) -> dict[str, Any]:
    """Fail when samples, with or without speculation, do not follow the target's distribution.

    Returns the document of `trtkit parity sampling --json`.
    """
    # torch takes a second to import, and the other assertions do without it.
    from trtkit.evaluate.sampling_run import SamplingOptions, check_sampling, refuse_bias

    document = check_sampling(build, SamplingOptions(choice, distance=distance, seed=seed))
    try:
        refuse_bias(document)
    except DifferenceError as error:
        raise AssertionError(str(error)) from None
    return document


def assert_latency(build: Build, limits: LatencyLimits, options: BenchOptions | None = None) -> dict[str, Any]:
    """Fail with every run that breaks a limit. Returns the document of `trtkit bench --json`."""
    chosen = options or BenchOptions(PromptChoice(), plot=False)
    document = bench_deployment(Target(str(build.folder), build), chosen)
    broken = list(broken_limits(document, limits))
    if broken:
        raise AssertionError("\n".join(broken))
    return document


def broken_limits(document: Mapping[str, Any], limits: LatencyLimits) -> Iterator[str]:
    """One line for each figure of a bench report beyond its limit. A figure that was not measured breaks its limit."""
    factors = {(s["draft_len"], s["concurrency"]): s["factor"] for s in document["speedups"]}
    for run in document["runs"]:
        if run["mode"] == "oracle":
            continue
        at_most = [("ttft_ms", limits.max_ttft_ms), ("tpot_ms", limits.max_tpot_ms)]
        for key, limit in at_most:
            yield from _line(run, key, (run[key] or {}).get("p50"), at_most=limit)
        if run["mode"] == "speculative":
            factor = factors.get((run["max_draft_len"], run["concurrency"]))
            yield from _line(run, "speed-up", factor, at_least=limits.min_speedup)
            yield from _line(run, "acceptance_rate", run["acceptance_rate"], at_least=limits.min_acceptance_rate)


def _line(
    run: Mapping[str, Any],
    key: str,
    value: float | None,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Iterator[str]:
    said = "not measured" if value is None else f"{value:.4g}"
    if at_most is not None and (value is None or value > at_most):
        yield f"{run_name(run)}: {key} {said}, at most {at_most:g} allowed"
    if at_least is not None and (value is None or value < at_least):
        yield f"{run_name(run)}: {key} {said}, at least {at_least:g} asked for"
