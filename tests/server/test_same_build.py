"""What makes a served model another build's, and what does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trtkit.repository.pbtxt import config_of, read_config
from trtkit.server.same_build import first_difference


@pytest.fixture
def config(repository_root: Path) -> Callable[[str], Any]:
    return lambda model: read_config(repository_root / "model_repo" / model / "config.pbtxt")


def changed(config: Any, key: str, value: str) -> Any:
    config.parameters[key].string_value = value
    return config


@pytest.mark.parametrize("model", ["tensorrt_llm", "tensorrt_llm_bls", "ensemble", "preprocessing"])
def test_a_model_is_like_itself(config: Callable[[str], Any], model: str) -> None:
    assert first_difference(config(model), config(model)) is None


def test_what_the_draft_target_loop_reads_makes_a_difference_and_its_address_does_not(
    config: Callable[[str], Any],
) -> None:
    built = config("tensorrt_llm_bls")
    assert first_difference(built, changed(config("tensorrt_llm_bls"), "grpc_address", "elsewhere:1")) is None
    other = changed(config("tensorrt_llm_bls"), "max_draft_len", "9")
    here = built.parameters["max_draft_len"].string_value
    assert first_difference(built, other) == f"parameter max_draft_len is '9' there, '{here}' in the build"


def test_where_an_engine_runs_makes_none_and_what_it_sees_does(config: Callable[[str], Any]) -> None:
    built = config("tensorrt_llm")
    assert first_difference(built, changed(config("tensorrt_llm"), "kv_cache_free_gpu_mem_fraction", "0.1")) is None
    windowed = changed(config("tensorrt_llm"), "max_attention_window_size", "64")
    assert first_difference(built, windowed) == (
        "parameter max_attention_window_size is '64' there, missing in the build"
    )


def test_tensors_streaming_batch_and_steps_make_a_difference(config: Callable[[str], Any]) -> None:
    built = config("tensorrt_llm_bls")
    fewer, batch, whole, wider = (config("tensorrt_llm_bls") for _ in range(4))
    del fewer.input[0]
    assert first_difference(built, fewer) == (
        f"input {built.input[0].name} is missing there, '{_shape(built.input[0])}' in the build"
    )
    batch.max_batch_size += 1
    assert "max_batch_size" in (first_difference(built, batch) or "")
    whole.model_transaction_policy.decoupled = False
    assert first_difference(built, whole) == "decoupled is False there, True in the build"
    wider.output[0].dims[0] = 7
    assert f"output {built.output[0].name}" in (first_difference(built, wider) or "")
    steps = config("ensemble")
    steps.model_transaction_policy.decoupled = True
    assert first_difference(config("ensemble"), steps) is None, "Triton infers it"
    del steps.ensemble_scheduling.step[0]
    assert "ensemble steps" in (first_difference(config("ensemble"), steps) or "")


def _shape(tensor: Any) -> str:
    optional = " optional" if tensor.optional else ""
    return f"type {tensor.data_type} {list(tensor.dims)}{optional}{' scalar' if tensor.HasField('reshape') else ''}"


def test_fields_of_a_newer_server_are_passed_over() -> None:
    document = {"name": "m", "max_batch_size": 4, "a_field_of_tomorrow": {"x": 1}, "input": [{"dims": ["-1"]}]}
    assert config_of(document).input[0].dims == [-1]
