"""A bench against its baseline: only ratios, only what got worse, and nothing silently left out."""

import json
from pathlib import Path
from typing import Any

import pytest
from documented_reports import undocumented
from trtkit.errors import DifferenceError, InputError
from trtkit.evaluate.bench.baseline import DEFAULT_TOLERANCES, baseline_of, compare, measures_of, read_baseline
from trtkit.evaluate.bench.run import BenchOptions, bench_deployment, refuse_regression, write_baseline
from trtkit.evaluate.endpoints.deployment import Target
from trtkit.evaluate.oracle.record_choice import PromptChoice


def run(mode: str, draft_len: int, tokens_per_s: float, acceptance: float | None = None) -> dict[str, Any]:
    length = None if acceptance is None else 1 + acceptance * draft_len
    return {
        "mode": mode,
        "max_draft_len": draft_len,
        "concurrency": 1,
        "tokens_per_s": tokens_per_s,
        "acceptance_rate": acceptance,
        "mean_acceptance_length": length,
    }


def bench(scale: float = 1.0, speedup: float = 1.5, acceptance: float = 0.5) -> dict[str, Any]:
    """transformers 10, plain target 20 tokens/s, both on a machine `scale` times as fast."""
    return {
        "deployment": "build/tiny",
        "command": "trtkit bench build/tiny",
        "versions": {},
        "speedups": [{"draft_len": 4, "concurrency": 1, "factor": speedup}],
        "runs": [
            run("oracle", 0, 10 * scale),
            run("target", 0, 20 * scale),
            run("speculative", 4, 20 * scale * speedup, acceptance),
        ],
    }


BASELINE = baseline_of(bench())


def test_its_keys_are_on_the_page() -> None:
    assert undocumented(BASELINE | {"runs": list(BASELINE["runs"].values())}) == set()


def test_only_ratios_are_kept() -> None:
    assert measures_of(bench()) == {
        "target K=0 c=1": {"over_transformers": 2.0},
        "speculative K=4 c=1": {
            "speedup": 1.5,
            "over_transformers": 3.0,
            "acceptance_rate": 0.5,
            "mean_acceptance_length": 3.0,
        },
    }


def test_only_one_request_at_a_time_is_held_to_transformers() -> None:
    """It answers one at a time; more at once would excuse a slower deployment."""
    document = bench()
    document["runs"].append(run("speculative", 4, 90.0, 0.5) | {"concurrency": 4})
    assert measures_of(document)["speculative K=4 c=4"] == {"acceptance_rate": 0.5, "mean_acceptance_length": 3.0}


def test_a_slower_machine_is_no_regression() -> None:
    assert compare(bench(scale=0.1), BASELINE) == {"num_compared": 5, "regressions": []}


def test_better_is_no_regression() -> None:
    assert compare(bench(speedup=3, acceptance=0.9), BASELINE)["regressions"] == []


def test_what_fell_further_than_allowed_is_named() -> None:
    found = compare(bench(speedup=1.0), BASELINE)["regressions"]
    assert [(r["run"], r["measure"], r["baseline"], r["value"]) for r in found] == [
        ("speculative K=4 c=1", "speedup", 1.5, 1.0),
        ("speculative K=4 c=1", "over_transformers", 3.0, 2.0),
    ]
    assert found[0]["allowed"] == pytest.approx(1.5 * (1 - DEFAULT_TOLERANCES["speedup"]))


def test_a_run_that_is_missing_is_a_regression() -> None:
    smaller = bench()
    smaller["runs"], smaller["speedups"] = smaller["runs"][:2], []
    found = compare(smaller, BASELINE)["regressions"]
    assert {(r["measure"], r["value"]) for r in found} == {(measure, None) for measure in DEFAULT_TOLERANCES}


def test_an_edited_tolerance_decides() -> None:
    lenient = {**BASELINE, "tolerances": dict.fromkeys(DEFAULT_TOLERANCES, 0.9)}
    assert compare(bench(speedup=0.5), lenient)["regressions"] == []


def test_a_regression_fails_with_every_measure_in_the_message() -> None:
    document = bench(speedup=1.0)
    document["baseline"] = {"file": "b.json", **compare(document, BASELINE)}
    with pytest.raises(
        DifferenceError, match=r"(?s)2 of 5 measures.*speedup 1\.000, baseline 1\.500.*--update-baseline"
    ):
        refuse_regression(document)
    refuse_regression(bench())  # without a baseline nothing is refused


def test_a_baseline_made_again_keeps_what_was_edited(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(path, bench())
    assert read_baseline(path) == BASELINE
    tolerances = DEFAULT_TOLERANCES | {"acceptance_rate": 0.4}
    edited = {**BASELINE, "tolerances": tolerances, "runs": {"speculative K=4 c=1": {"acceptance_rate": 0.5}}}
    path.write_text(json.dumps(edited))
    write_baseline(path, bench(acceptance=0.25))
    again = read_baseline(path)
    assert again["tolerances"] == tolerances
    assert again["runs"] == {"speculative K=4 c=1": {"acceptance_rate": 0.25}}
    other = bench()
    other["runs"] = other["runs"][:2]
    with pytest.raises(InputError, match="speculative K=4 c=1: acceptance_rate"):
        write_baseline(path, other)
    assert read_baseline(path) == again


def test_a_baseline_loses_no_measure_when_it_is_made_again(tmp_path: Path) -> None:
    write_baseline(tmp_path / "baseline.json", bench())
    without_oracle = bench()
    del without_oracle["runs"][0]
    with pytest.raises(
        InputError, match=r"does not measure: target K=0 c=1: over_transformers, speculative K=4 c=1: ov"
    ):
        write_baseline(tmp_path / "baseline.json", without_oracle)
    assert read_baseline(tmp_path / "baseline.json") == BASELINE


def test_a_bench_without_the_runs_of_a_baseline_is_refused_before_it_measures(tmp_path: Path) -> None:
    write_baseline(tmp_path / "baseline.json", bench())
    options = BenchOptions(PromptChoice(), draft_lens=(2,), baseline=tmp_path / "baseline.json", update_baseline=True)
    with pytest.raises(InputError, match=r"does not measure: speculative K=4 c=1\n"):
        bench_deployment(Target("nobody", address="127.0.0.1:1"), options)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"schema": "other"}', json.dumps({**BASELINE, "tolerances": {}})],
)
def test_a_file_that_is_no_baseline_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(content)
    with pytest.raises(InputError, match="not a bench baseline"):
        read_baseline(path)


def test_a_missing_baseline_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--update-baseline"):
        read_baseline(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runs": {}}, "no measure"),
        ({"runs": {"a": {}}}, "no measure"),
        ({"runs": {"a": {"speedup": float("nan")}}}, "speedup is nan"),
        ({"runs": {"a": {"speedup": "1.5"}}}, "speedup is '1.5'"),
        ({"runs": {"a": {"speedup": None}}}, "speedup is None"),
        ({"runs": {"a": {"speedup": -1.5}}}, "speedup is -1.5"),
        ({"runs": {"a": {"speed": 1.5}}}, "no tolerance for speed"),
        ({"runs": 5}, "AttributeError"),
        ({"tolerances": {"speedup": float("nan")}}, "tolerance nan"),
        ({"tolerances": {"speedup": "x"}}, "tolerance 'x'"),
        ({"tolerances": {"speedup": 25}}, "tolerance 25"),
        ({"tolerances": {"speedup": -1}}, "tolerance -1"),
    ],
)
def test_a_baseline_that_would_hold_a_bench_to_nothing_is_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({**BASELINE, **changes}))
    with pytest.raises(InputError, match=said):
        read_baseline(path)


def test_a_bench_without_ratios_makes_no_baseline() -> None:
    nothing = {**bench(), "speedups": [], "runs": [run("target", 0, 20)]}
    with pytest.raises(InputError, match="no ratio to keep"):
        baseline_of(nothing)


def test_a_damaged_baseline_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text("{")
    options = BenchOptions(PromptChoice(), draft_lens=(1,), baseline=path, update_baseline=True)
    with pytest.raises(InputError, match="correct or remove it"):
        bench_deployment(Target("nobody", address="127.0.0.1:1"), options)
