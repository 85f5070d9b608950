"""Parity, sampling and latency as assertions for users' own tests. Knows messages; measures nothing."""

from dataclasses import replace
from typing import Any

from trtkit.builds import Build
from trtkit.errors import DifferenceError
from trtkit.evaluate.bench.limits import LatencyLimits, refuse_slowness
from trtkit.evaluate.bench.run import BenchOptions, bench_deployment, refuse_regression
from trtkit.evaluate.bench.summary import bench_markdown
from trtkit.evaluate.endpoints.deployment import Target
from trtkit.evaluate.oracle.record_choice import PromptChoice
from trtkit.evaluate.parity.run import CheckOptions, check_parity
from trtkit.evaluate.parity.shares import ParityShares, refuse_difference
from trtkit.evaluate.parity.summary import parity_markdown
from trtkit.evaluate.repeat import bench_command, check_command, sampling_command
from trtkit.evaluate.sampling.summary import sampling_markdown


def assert_parity(
    build: Build,
    choice: PromptChoice | None = None,
    *,
    min_identical: float | None = None,
    max_near_tie: float | None = None,
    in_process: bool = False,
) -> dict[str, Any]:
    """Fail with the whole report when an answer is different, or a share of the prompts is not kept.

    The build's own shares hold where none is given. Returns the document of `trtkit parity check --json`.
    """
    shares = ParityShares(min_identical, max_near_tie)
    options = CheckOptions(choice or PromptChoice(), shares=shares, in_process=in_process)
    options = replace(options, command=check_command(build.folder, options))
    document = check_parity(Target(str(build.folder), build), options)
    try:
        refuse_difference(document)
    except DifferenceError as error:
        raise AssertionError(f"{error}\n\n{parity_markdown(document)}") from None
    return document


def assert_sampling(build: Build, choice: PromptChoice, *, distance: float = 0.2, seed: int = 0) -> dict[str, Any]:
    """Fail with every test when samples, with or without speculation, do not follow the target's distribution.

    Returns the document of `trtkit parity sampling --json`.
    """
    # torch takes a second to import, and the other assertions do without it.
    from trtkit.evaluate.sampling.run import SamplingOptions, check_sampling, refuse_bias

    command = sampling_command(build, choice, distance, seed)
    document = check_sampling(build, SamplingOptions(choice, distance=distance, seed=seed, command=command))
    try:
        refuse_bias(document)
    except DifferenceError as error:
        raise AssertionError(f"{error}\n\n{sampling_markdown(document)}") from None
    return document


def assert_latency(
    build: Build, limits: LatencyLimits | None = None, options: BenchOptions | None = None
) -> dict[str, Any]:
    """Fail with every run that breaks a limit, and every measure below the baseline.

    The build's own limits and baseline hold where none is given here. Returns the document of `trtkit bench --json`.
    """
    chosen = options or BenchOptions(PromptChoice(), plot=False)
    chosen = replace(chosen, limits=limits or chosen.limits)
    chosen = replace(chosen, command=bench_command(build.folder, chosen))
    document = bench_deployment(Target(str(build.folder), build), chosen)
    try:
        refuse_regression(document)
        refuse_slowness(document)
    except DifferenceError as error:
        raise AssertionError(f"{error}\n\n{bench_markdown(document)}") from None
    return document
