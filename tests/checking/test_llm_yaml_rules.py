"""model.yaml of an llmapi repository: every rule has a case that triggers it and one that comes close."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from trtkit.checking.folder_checks import check_repository
from trtkit.checking.rules.llm_yaml import LLM_YAML_RULES

SOUND: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "backend": "pytorch",
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 1,
    "kv_cache_config": {"enable_block_reuse": True, "free_gpu_memory_fraction": 0.9},
    "triton_config": {"max_batch_size": 0, "decoupled": True},
}
DRAFT = {"decoding_type": "DraftTarget", "speculative_model_dir": "draft", "max_draft_len": 5}
NEW_DRAFT = {"decoding_type": "Draft_Target", "speculative_model": "draft", "max_draft_len": 5}
MIXED = {"decoding_type": "DraftTarget", "speculative_model": "draft", "max_draft_len": 5}
# code -> (keys that trigger it, keys that come close)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "LLM-SINKS": (
        {"kv_cache_config": {"sink_token_length": 4}},
        {"kv_cache_config": {"sink_token_length": None, "max_attention_window": [1024]}},
    ),
    "LLM-SPELLING": ({"speculative_config": MIXED}, {"speculative_config": NEW_DRAFT}),
    "LLM-KEY": ({"kv_cache_confg": {}}, {"kv_cache_config": {}}),
    "LLM-TRITON": (
        {"triton_config": {"max_batch_size": 0}},
        {"triton_config": {"max_batch_size": 0, "decoupled": False}},
    ),
    "LLM-BACKEND": ({"backend": "tensorrt"}, {"backend": "pytorch"}),
    "LLM-PP": (
        {"speculative_config": DRAFT, "pipeline_parallel_size": 2},
        {"speculative_config": DRAFT, "pipeline_parallel_size": 1},
    ),
}


def repository(folder: Path, text: str) -> Path:
    version = folder / "model_repository" / "tensorrt_llm" / "1"
    version.mkdir(parents=True)
    (version / "model.yaml").write_text(text)
    (version / "model.py").touch()
    config = 'name: "tensorrt_llm"\nbackend: "python"\ninput { name: "text_input" data_type: TYPE_STRING dims: -1 }\n'
    (version.parent / "config.pbtxt").write_text(config)
    return folder / "model_repository"


def codes(folder: Path, changes: dict[str, Any]) -> set[str]:
    text = yaml.safe_dump({**SOUND, **changes})
    return {finding.code for finding in check_repository(repository(folder, text))}


def test_every_rule_has_a_case() -> None:
    assert {rule.code for rule in LLM_YAML_RULES} == set(CASES)


def test_a_sound_repository_gives_no_finding(tmp_path: Path) -> None:
    assert codes(tmp_path, {}) == set()


@pytest.mark.parametrize("code", CASES)
def test_a_rule_triggers_on_its_case(code: str, tmp_path: Path) -> None:
    assert codes(tmp_path, CASES[code][0]) == {code}


@pytest.mark.parametrize("code", CASES)
def test_a_rule_stays_silent_when_it_only_comes_close(code: str, tmp_path: Path) -> None:
    assert codes(tmp_path, CASES[code][1]) == set()


@pytest.mark.parametrize("text", ["a: b: c", "- 1"])
def test_a_file_that_is_no_mapping_is_one_finding(text: str, tmp_path: Path) -> None:
    assert {finding.code for finding in check_repository(repository(tmp_path, text))} == {"LLM-YAML"}


def test_a_misspelt_key_brings_the_right_one(tmp_path: Path) -> None:
    text = yaml.safe_dump({**SOUND, "kv_cache_confg": {}})
    (finding,) = check_repository(repository(tmp_path, text))
    assert "did you mean kv_cache_config?" in finding.cause
    assert finding.where.endswith("tensorrt_llm/1/model.yaml:kv_cache_confg")
