"""Builds with quantised layers: what that explains is measured with the oracle, and what it does not is found."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deployed_tiny import Tensors, change_weights, copy_of, deployed_tiny
from tiny import tiny_checkpoint
from trtkit.builds import Build
from trtkit.errors import InputError
from trtkit.evaluate.checkpoint.quantization_error import quantization_error
from trtkit.evaluate.endpoints.deployment import Target
from trtkit.evaluate.oracle.matrix_rounding import QUANTIZATIONS, round_inputs, round_weights
from trtkit.evaluate.oracle.numerics import GivenFormats, formats_of, numeric_profile
from trtkit.evaluate.oracle.oracle import Oracle
from trtkit.evaluate.oracle.record import ServedFormats, read_record
from trtkit.evaluate.oracle.record_choice import PromptChoice, record_build
from trtkit.evaluate.oracle.rounding_weights import measure_weight_error, rounded_matrices
from trtkit.evaluate.parity.run import CheckOptions, check_parity

CHOICE = PromptChoice(limit=6)
MADE_HERE = ("fp8", "int8_weight_only", "int4_weight_only")
WEIGHTS_ALONE = ("int8_weight_only", "int4_weight_only", "int4_awq")


@pytest.fixture(scope="module", params=MADE_HERE)
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    made = deployed_tiny(tmp_path_factory.mktemp("tiny"), dtype="bfloat16", quantization=request.param)
    record_build(made, CHOICE)
    return made


@pytest.fixture
def broken(build: Build, tmp_path: Path) -> Build:
    return copy_of(build, tmp_path / "build")


def check(build: Build, **options: Any) -> dict[str, Any]:
    return check_parity(Target("tiny", build), CheckOptions(CHOICE, in_process=True, **options))


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_a_matrix_comes_back_near_itself_and_rounding_it_again_changes_nothing(kind: str) -> None:
    weights = torch.randn(2, 64, 256, generator=torch.Generator().manual_seed(0))
    back = round_weights(weights, kind)
    error = ((back - weights).norm() / weights.norm()).item()
    four_bits = kind in ("int4_weight_only", "int4_awq", "w4a8_awq", "nvfp4")
    assert (0.05 < error < 0.2) if four_bits else (0 < error < 0.04)
    # Integers lack the positive end, so the scale of what comes back may be a step smaller.
    assert kind.startswith("int") or kind == "w4a8_awq" or torch.allclose(round_weights(back, kind), back, atol=1e-6)


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_inputs_are_rounded_where_the_format_has_them_rounded(kind: str) -> None:
    inputs = torch.randn(7, 128, generator=torch.Generator().manual_seed(1))
    assert torch.equal(round_inputs(inputs, kind), inputs) == (kind in WEIGHTS_ALONE)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_the_oracle_is_itself_again_afterwards(family: str, tmp_path: Path) -> None:
    oracle = Oracle.load(tiny_checkpoint(tmp_path / "tiny", family))
    before = oracle.states([5, 6, 7, 8])
    with rounded_matrices(oracle, "int8_smoothquant"):
        moved = oracle.states([5, 6, 7, 8])
    assert not torch.equal(moved, before)
    assert torch.equal(oracle.states([5, 6, 7, 8]), before)


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_what_is_measured_is_of_the_size_that_the_formats_steps_say(kind: str, tmp_path: Path) -> None:
    oracle = Oracle.load(tiny_checkpoint(tmp_path / "tiny", hidden_size=128, intermediate_size=256))
    generator = torch.Generator().manual_seed(2)
    texts = [(ids, 24) for ids in torch.randint(3, 320, (4, 32), generator=generator).tolist()]
    # Random weights amplify what is rounded, about threefold here; the demo pair has 0.5 to 1.
    assert 0.5 < measure_weight_error(oracle, texts, kind) / quantization_error(kind) < 6


def test_a_clean_build_has_no_difference_and_its_tolerance_says_why(build: Build) -> None:
    document = check(build)
    assert document["different"] == 0
    kind = build.config.target.quantization
    errors = read_record(build.folder / "parity" / "record.json").weight_errors
    # The oracle has the integers itself, and tells of them in its tolerance nothing.
    assert errors.keys() == ({"fp8"} if kind == "fp8" else set())
    assert document["oracle"]["quantization"] == ("none" if kind == "fp8" else kind)
    error = errors.get(kind, 0.0)
    assert (document["tolerance"]["weight_error"], document["tolerance"]["quantization"]) == (error, kind)
    assert f"weights {error:.3g}" in document["tolerance"]["formula"]


def test_swapped_matrices_are_different_all_the_same(broken: Build) -> None:
    def swap(tensors: Tensors) -> None:
        for part in ("weight", "per_channel_scale", "weights_scaling_factor", "activation_scaling_factor"):
            fc, gate = (f"transformer.layers.0.mlp.{name}.{part}" for name in ("fc", "gate"))
            if fc in tensors:
                tensors[fc], tensors[gate] = tensors[gate], tensors[fc]

    change_weights(broken, "target", swap)
    document = check(broken)
    assert document["verdict"] == "different"
    assert "model" in [found["fault"] for found in document["diagnosis"]]


def test_without_the_measured_error_quantisation_would_be_taken_for_a_fault(tmp_path: Path) -> None:
    made = deployed_tiny(tmp_path, quantization="fp8")
    assert record_build(made, PromptChoice()).weight_errors["fp8"] > 0
    options = CheckOptions(PromptChoice(), in_process=True)
    assert check_parity(Target("tiny", made), options)["different"] == 0
    path = made.folder / "parity" / "record.json"
    document = json.loads(path.read_text())
    document["weight_errors"]["fp8"] = 0.0
    path.write_text(json.dumps(document))
    assert check_parity(Target("tiny", made), options)["different"] > 0


def test_an_oracle_with_the_integers_answers_what_a_float32_deployment_of_them_answers(tmp_path: Path) -> None:
    made = deployed_tiny(tmp_path, quantization="int4_weight_only")
    record_build(made, CHOICE)
    document = check(made)
    assert document["identical"] == len(document["prompts"])
    path = made.folder / "parity" / "record.json"
    for given in (GivenFormats(quantization="none"), GivenFormats(quantization="int8_weight_only")):
        with pytest.raises(InputError, match="the recorded oracle has layers in int4_weight_only"):
            numeric_profile(read_record(path), given.over(formats_of(made)))


def test_a_server_is_judged_in_the_formats_of_the_recorded_build_unless_others_are_given(build: Build) -> None:
    record = read_record(build.folder / "parity" / "record.json")
    kind = build.config.target.quantization
    assert record.formats == formats_of(build) == ServedFormats("bfloat16", "auto", kind)
    assert GivenFormats().over(record.formats) == record.formats
    assert GivenFormats("float16").over(record.formats) == ServedFormats("float16", "auto", kind)
    assert (numeric_profile(record, record.formats).weight_error > 0) == (kind == "fp8")
    with_kv = replace(record, kv_errors={"fp8": 0.05})
    assert numeric_profile(with_kv, GivenFormats(kv_dtype="fp8").over(record.formats)).kv_error == 0.05


@pytest.mark.parametrize("given", [GivenFormats(kv_dtype="int4"), GivenFormats(quantization="nvfp4")])
def test_a_format_that_the_record_was_not_made_for_is_refused(given: GivenFormats, build: Build) -> None:
    record = read_record(build.folder / "parity" / "record.json")
    with pytest.raises(InputError, match="the record") as caught:
        numeric_profile(record, given.over(record.formats))
    assert caught.value.code == "PARITY-RECORD"
