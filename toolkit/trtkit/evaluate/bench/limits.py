"""What a bench must keep, in absolute figures: by the build's YAML, and by what overrides it. Measures nothing."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from trtkit.builds import Build
from trtkit.errors import DifferenceError, InputError
from trtkit.evaluate.bench.document import run_name


@dataclass(frozen=True)
class LatencyLimits:
    """What a bench must keep; None leaves a figure free. Medians count; the last two are asked of drafting runs."""

    max_ttft_ms: float | None = None
    max_tpot_ms: float | None = None
    min_speedup: float | None = None
    min_acceptance_rate: float | None = None

    def __post_init__(self) -> None:
        """Raise InputError for what is no limit: nothing is above not-a-number, so it would pass as kept."""
        for name, value in asdict(self).items():
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} is {value}, which limits nothing", "give a number from 0", code="LIMIT")

    def over(self, build: Build | None) -> Self:
        """These limits, and those of the build's YAML where none is given here."""
        if build is None:
            return self
        names = [field.name for field in fields(self)]
        given = {name: getattr(self, name) for name in names}
        configured = {name: getattr(build.config.verification, name) for name in names}
        return type(self)(**{name: configured[name] if given[name] is None else given[name] for name in names})


def refuse_slowness(document: Mapping[str, Any]) -> None:
    """Raise DifferenceError with every line of a bench report's `broken_limits`."""
    if document["broken_limits"]:
        raise DifferenceError(
            "\n".join(document["broken_limits"]),
            "find what made it slow, or ask for less: verification in the YAML, or the flags",
            code="BENCH-LIMIT",
        )


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
