"""A bench held against an earlier one, by ratios that carry over between machines. Pure but for reading the file."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtkit.errors import InputError
from trtkit.evaluate.bench.document import pace_of

SCHEMA = "trtkit.bench-baseline/1"

# Measure -> how much of the baseline's value may be lost before it counts; all of them are better when larger.
DEFAULT_TOLERANCES: dict[str, float] = {
    "speedup": 0.25,  # over the plain target of the same run
    "over_transformers": 0.25,  # tokens per second over transformers' in the same run
    "acceptance_rate": 0.15,
    "mean_acceptance_length": 0.10,
}


@dataclass(frozen=True)
class Regression:
    """One measure of one run that fell below what the baseline allows."""

    run: str
    measure: str
    baseline: float
    value: float | None
    allowed: float


def regression_line(regression: Mapping[str, Any]) -> str:
    """One line of text on one regression."""
    value = "not measured" if regression["value"] is None else f"{regression['value']:.3f}"
    return (
        f"{regression['run']}: {regression['measure']} {value}, baseline {regression['baseline']:.3f}, "
        f"allowed from {regression['allowed']:.3f}"
    )


def measures_of(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Run -> measure -> value, of a bench report; only what does not depend on how fast the machine is."""
    factors = {(s["draft_len"], s["concurrency"]): s["factor"] for s in document["speedups"]}
    plain = next((run["tokens_per_s"] for run in document["runs"] if run["mode"] == "oracle"), None)
    measures: dict[str, dict[str, float]] = {}
    for run in document["runs"]:
        over = run["tokens_per_s"] / plain if plain and run["tokens_per_s"] and run["mode"] != "oracle" else None
        values = {
            "speedup": factors.get((run["max_draft_len"], run["concurrency"])),
            "over_transformers": over if run["concurrency"] == 1 else None,
            "acceptance_rate": run["acceptance_rate"],
            "mean_acceptance_length": run["mean_acceptance_length"],
        }
        kept = {measure: value for measure, value in values.items() if value is not None}
        if kept:
            measures[run_key(run)] = kept
    return measures


def run_key(run: Mapping[str, Any]) -> str:
    """What a run is called in a baseline: "target K=0 c=1", "speculative K=4 2/s"."""
    return f"{run['mode']} K={run['max_draft_len']} {pace_of(run)}"


def baseline_of(document: Mapping[str, Any], standing: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The baseline that this bench makes, to be committed and edited.

    A standing one keeps its tolerances, its runs and its measures: what was taken out by hand does not come back, and
    nothing gets lost. Raises InputError when there is nothing to keep, or one of those was not measured.
    """
    measured = measures_of(document)
    if not measured:
        raise InputError(
            "this bench has no ratio to keep: no answer had a token, or nothing was drafted and --oracle left out",
            "measure a draft length, or add --oracle",
            code="BASELINE",
        )
    if standing is not None:
        _refuse_missing([f"{each.run}: {each.measure}" for each in _compared(document, standing) if each.value is None])
        measured = {
            run: {measure: measured[run][measure] for measure in measures} for run, measures in standing["runs"].items()
        }
    return {
        "schema": SCHEMA,
        "deployment": document["deployment"],
        "command": document["command"],
        "tolerances": DEFAULT_TOLERANCES if standing is None else standing["tolerances"],
        "runs": measured,
        "versions": document["versions"],
    }


def refuse_unplanned(standing: Mapping[str, Any], planned: Iterable[str]) -> None:
    """Raise InputError when a bench of these runs cannot measure all that a standing baseline holds."""
    names = set(planned)
    _refuse_missing([run for run in standing["runs"] if run not in names])


def _refuse_missing(missing: Sequence[str]) -> None:
    if missing:
        raise InputError(
            f"the baseline also holds what this bench does not measure: {', '.join(missing)}",
            "measure that too, with the options of the command in the file; or take it out of the file",
            code="BASELINE",
        )


def read_baseline(path: Path) -> dict[str, Any]:
    """Read a baseline. Raises InputError when it is missing, or not one of this schema."""
    try:
        baseline = json.loads(path.read_text(encoding="utf-8"))
        _validate(baseline)
    except OSError as error:
        raise InputError(
            f"cannot read the baseline: {error.strerror}",
            "make one with --update-baseline",
            code="BASELINE",
            where=str(path),
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"not a bench baseline: {type(error).__name__} {error}",
            "correct or remove it, and make a new one with --update-baseline",
            code="BASELINE",
            where=str(path),
        ) from None
    return dict(baseline)


def _validate(baseline: Mapping[str, Any]) -> None:
    if baseline["schema"] != SCHEMA:
        raise ValueError(f"schema {baseline['schema']!r}, this version reads {SCHEMA!r}")
    values = [(run, *item) for run, measures in baseline["runs"].items() for item in measures.items()]
    if not values:
        raise ValueError("it holds no measure, so every bench would pass")
    for measure, tolerance in baseline["tolerances"].items():
        if not (_is_number(tolerance) and 0 <= tolerance < 1):
            raise ValueError(f"tolerance {tolerance!r} of {measure} is no share that may be lost")
    for run, measure, value in values:
        if measure not in baseline["tolerances"]:
            raise ValueError(f"{run}: no tolerance for {measure}")
        if not (_is_number(value) and value >= 0):
            raise ValueError(f"{run}: {measure} is {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def compare(document: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    """{"num_compared", "regressions"}: every measure of the baseline against this bench.

    A measure that this bench did not take counts as a regression: a check that silently compares less proves less.
    """
    compared = list(_compared(document, baseline))
    worse = [asdict(each) for each in compared if each.value is None or each.value < each.allowed]
    return {"num_compared": len(compared), "regressions": worse}


def _compared(document: Mapping[str, Any], baseline: Mapping[str, Any]) -> Iterator[Regression]:
    measured = measures_of(document)
    for run, measures in baseline["runs"].items():
        for measure, value in measures.items():
            allowed = value * (1 - baseline["tolerances"][measure])
            yield Regression(run, measure, value, measured.get(run, {}).get(measure), allowed)
