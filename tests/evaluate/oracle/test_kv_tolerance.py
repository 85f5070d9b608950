"""Builds with a coarser KV cache: what it explains is measured with the oracle, and what it does not is found."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from deployed_tiny import deployed_tiny
from torch import Tensor
from trtkit.builds import Build
from trtkit.evaluate.endpoints.deployment import Target
from trtkit.evaluate.oracle.record import read_record
from trtkit.evaluate.oracle.record_choice import PromptChoice, record_build
from trtkit.evaluate.oracle.rounding_cache import round_trip
from trtkit.evaluate.parity.run import CheckOptions, check_parity
from trtkit.reference.kv_cache.formats import Fp8

CHOICE = PromptChoice(limit=6)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    made = deployed_tiny(tmp_path_factory.mktemp("fp8"), dtype=request.param, kv_dtype="fp8")
    record_build(made, CHOICE)
    return made


def check(build: Build) -> dict[str, Any]:
    return check_parity(Target("tiny", build), CheckOptions(CHOICE, in_process=True))


@pytest.mark.parametrize(("kind", "largest"), [("fp8", 2.0**-4), ("int8", 1 / 254), ("int4", 1 / 30)])
def test_a_value_comes_back_within_half_a_step(kind: str, largest: float) -> None:
    values = torch.randn(1, 2, 50, 64, generator=torch.Generator().manual_seed(0))
    back = round_trip(values, kind)
    error = (back - values).abs()
    if kind == "fp8":
        normal = values.abs() > values.abs().amax() / 448 * 2.0**-6
        assert (error / values.abs())[normal].max() <= largest
    else:
        assert error.max() <= largest * (values.amax() - values.amin())
    assert error.max() > 0
    assert torch.allclose(round_trip(back, kind), back, atol=1e-5)


def test_a_clean_build_has_no_difference_and_its_tolerance_says_why(build: Build) -> None:
    document = check(build)
    assert document["different"] == 0
    kv_error = read_record(build.folder / "parity" / "record.json").kv_errors["fp8"]
    assert document["tolerance"]["kv_error"] == kv_error > 0.005
    assert f"cache {kv_error:.3g}" in document["tolerance"]["formula"]


def test_a_scale_that_is_doubled_on_reading_is_different(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Fp8.decode

    def doubled(self: Fp8, layer: int, parts: Sequence[Tensor]) -> Tensor:
        return decode(self, layer, parts) * 2

    monkeypatch.setattr(Fp8, "decode", doubled)
    document = check(build)
    assert document["different"] >= 0.7 * len(document["prompts"])
    assert [found["fault"] for found in document["diagnosis"]] == ["model"]


def test_without_the_measured_error_rounding_would_be_taken_for_a_fault(tmp_path: Path) -> None:
    made = deployed_tiny(tmp_path, dtype="float32", kv_dtype="fp8")
    record = record_build(made, PromptChoice())
    path = made.folder / "parity" / "record.json"
    assert record.kv_errors["fp8"] > 0
    path.write_text(path.read_text().replace(f'"fp8": {record.kv_errors["fp8"]}', '"fp8": 0.0'))
    assert check_parity(Target("tiny", made), CheckOptions(PromptChoice(), in_process=True))["different"] > 0
