"""The LLM API's YAML of every release: golden, within the release's keys, and without a dead option."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from trtkit.engines.llmapi import LlmApiSpec, llm_arguments, model_yaml, serve_command, serve_yaml
from trtkit.engines.release import LlmApi, Release, find_release, releases
from trtkit.errors import InputError
from trtkit.repository.llmapi import llmapi_contract, render_llmapi_repository

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "engines" / "llmapi"
WITH_API = [release for release in releases() if release.llm_api]
NAMED = [release for release in WITH_API if "rc" not in release.version or release.version[-2:] in ("15", "29", "c1")]
PAIR = LlmApiSpec(
    model="nvidia/Llama-3.3-70B-Instruct-FP8",
    max_batch_size=8,
    max_input_len=8192,
    max_seq_len=10240,
    tensor_parallel=4,
    kv_dtype="fp8",
    draft="meta-llama/Llama-3.2-1B-Instruct",
    max_draft_len=5,
)
OTHER_VALUE: dict[str, Any] = {
    "model": "other/model",
    "max_batch_size": 16,
    "max_input_len": 16384,
    "max_seq_len": 20480,
    "revision": "main",
    "dtype": "float16",
    "tensor_parallel": 8,
    "pipeline_parallel": 2,
    "expert_parallel": 2,
    "kv_dtype": "auto",
    "block_size": 64,
    "reuse": False,
    "draft": "other/draft",
    "max_draft_len": 3,
}


def _release(version: str) -> Release:
    release = find_release(version)
    assert release is not None
    return release


def _api(release: Release) -> LlmApi:
    assert release.llm_api is not None
    return release.llm_api


@pytest.mark.parametrize("release", NAMED, ids=lambda r: r.version)
def test_the_files_are_the_golden_ones(release: Release, assert_golden: Callable[[str, Path], None]) -> None:
    files = render_llmapi_repository(release, model_yaml(PAIR, release, decoupled=True), decoupled=True)
    files["trtllm-serve.yaml"] = serve_yaml(PAIR, release)
    files["trtllm-serve.txt"] = " ".join(serve_command(PAIR, release, "launch/trtllm-serve.yaml", 8000)) + "\n"
    for name, text in files.items():
        assert_golden(text, GOLDEN / release.version / Path(name).name)


@pytest.mark.parametrize("release", WITH_API, ids=lambda r: r.version)
def test_only_keys_that_the_release_knows_are_written(release: Release) -> None:
    api, document = _api(release), yaml.safe_load(model_yaml(PAIR, release, decoupled=True))
    assert document.pop("triton_config").keys() == {"max_batch_size", "decoupled", "cancellation_check_period_ms"}
    assert document.keys() <= api.keys
    assert document["kv_cache_config"].keys() <= api.kv_cache_keys
    assert document["speculative_config"].keys() <= api.speculative_keys
    assert "sink_token_length" not in document["kv_cache_config"]


@pytest.mark.parametrize(
    ("version", "decoding_type", "draft_key", "overlap_off", "reuse"),
    [
        ("1.0.0", "DraftTarget", "speculative_model_dir", True, False),
        ("1.2.1", "DraftTarget", "speculative_model_dir", True, False),
        ("1.3.0rc29", "Draft_Target", "speculative_model", False, True),
        ("1.4.0rc1", "Draft_Target", "speculative_model", False, True),
    ],
)
def test_the_draft_is_spelled_as_the_release_wants_it(
    version: str, decoding_type: str, draft_key: str, overlap_off: bool, reuse: bool
) -> None:
    arguments = llm_arguments(PAIR, _release(version))
    wanted = {"decoding_type": decoding_type, draft_key: PAIR.draft, "max_draft_len": 5}
    assert arguments["speculative_config"] == wanted
    assert arguments["disable_overlap_scheduler"] is overlap_off
    assert arguments["kv_cache_config"]["enable_block_reuse"] is reuse


def test_without_a_draft_reuse_and_overlap_stay_on_everywhere() -> None:
    alone = dataclasses.replace(PAIR, draft=None, max_draft_len=0)
    for release in WITH_API:
        arguments = llm_arguments(alone, release)
        assert arguments["kv_cache_config"]["enable_block_reuse"] and not arguments["disable_overlap_scheduler"]
        assert "speculative_config" not in arguments


def test_every_field_changes_the_yaml() -> None:
    assert OTHER_VALUE.keys() == {field.name for field in dataclasses.fields(LlmApiSpec)}
    release = _release("1.4.0rc1")
    default = model_yaml(PAIR, release, decoupled=True)
    for name, value in OTHER_VALUE.items():
        assert model_yaml(dataclasses.replace(PAIR, **{name: value}), release, decoupled=True) != default, name
    assert model_yaml(PAIR, release, decoupled=False) != default


def test_a_block_size_that_the_release_cannot_set_is_refused() -> None:
    with pytest.raises(InputError, match="no key for the block size"):
        llm_arguments(dataclasses.replace(PAIR, block_size=64), _release("1.0.0"))
    assert "tokens_per_block" not in llm_arguments(PAIR, _release("1.0.0"))["kv_cache_config"]


def test_a_kv_format_that_the_llm_api_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="no int8 KV cache"):
        llm_arguments(dataclasses.replace(PAIR, kv_dtype="int8"), _release("1.2.1"))


def test_a_release_before_1_0_is_refused() -> None:
    with pytest.raises(InputError, match="no stable LLM API"):
        llm_arguments(PAIR, _release("0.21.0"))
    with pytest.raises(InputError, match="no llmapi model"):
        llmapi_contract(_release("0.21.0"))


def test_the_serve_yaml_leaves_the_model_to_the_command_line() -> None:
    document = yaml.safe_load(serve_yaml(PAIR, _release("1.2.1")))
    assert not {"model", "backend", "triton_config"} & document.keys()
    assert serve_command(PAIR, _release("1.2.1"), "x.yaml", 8000)[-2:] == ["--extra_llm_api_options", "x.yaml"]
    assert serve_command(PAIR, _release("1.3.0rc29"), "x.yaml", 8000)[-2:] == ["--config", "x.yaml"]
