"""What users of this field suffered from, case by case, with exactly the outcome each must have."""

from pathlib import Path
from typing import Any

import pytest
from deployments import WORDS, Change, deployment_of
from engine_folders import write_engine
from trtkit.checking.folder_checks import check_engine
from trtkit.checking.rule import run_rules
from trtkit.checking.rules import CONFIG_RULES
from trtkit.findings import Finding

QWEN = {"target_family": "qwen2", "draft_family": "qwen2"}
SIZES = {"target": {"vocab_size": 152064}, "draft": {"vocab_size": 151936}}
SINKS = {"sink_tokens": 4, "window_tokens": 1020, "strategy": "engine"}
TP4 = {"target.tensor_parallel": 4}
ALONE = {"draft": ..., "speculation": ...}
FP8_PAIR = {"target.quantization": "fp8", "draft.quantization": "fp8", "kv_cache.dtype": "fp8"}


def findings_of(folder: Path, change: Change) -> dict[str, Finding]:
    found = run_rules(CONFIG_RULES, deployment_of(folder, change), "pair.yaml")
    return {finding.code: finding for finding in found}


def errors_of(folder: Path, yaml: dict[str, Any], **rest: Any) -> set[str]:
    found = findings_of(folder, Change(yaml=TP4 | yaml, **rest))
    return {code for code, finding in found.items() if finding.severity == "error"}


class TestPaddedVocabularies:
    """Qwen pads 151646 ids to 151936 in small models and to 152064 in large ones."""

    def test_token_acceptance_is_accepted_with_a_note(self, tmp_path: Path) -> None:
        found = findings_of(tmp_path, Change(yaml=TP4, **QWEN, **SIZES))
        assert found["PAIR-PADDED"].severity == "note"
        assert not [code for code, finding in found.items() if finding.severity == "error"]

    def test_logits_acceptance_is_refused_naming_both_sizes_and_the_remedy(self, tmp_path: Path) -> None:
        change = Change(yaml=TP4 | {"speculation.acceptance": "logits"}, **QWEN, **SIZES)
        finding = findings_of(tmp_path, change)["PAIR-VOCAB"]
        assert finding.severity == "error"
        assert "151936" in finding.cause and "152064" in finding.cause
        assert "pad_draft_vocab: true" in finding.fix

    def test_a_draft_larger_than_its_target_is_accepted_while_its_ids_are_known(self, tmp_path: Path) -> None:
        larger = {"target": {"vocab_size": 151936}, "draft": {"vocab_size": 152064}}
        assert errors_of(tmp_path, {}, **QWEN, **larger) == set()

    def test_and_refused_when_they_are_not(self, tmp_path: Path) -> None:
        larger = {"target": {"vocab_size": 151936}, "draft": {"vocab_size": 152064}}
        beyond = {"special": {0: "<s>", 1: "</s>", 152000: "<|x|>"}}
        assert "PAIR-TARGET-IDS" in errors_of(tmp_path, {}, **QWEN, **larger, draft_tokenizer=beyond)


def test_same_size_but_permuted_ids_are_refused_with_the_count_and_the_first_three(tmp_path: Path) -> None:
    permuted = (*WORDS[:2], *reversed(WORDS[2:]))
    found = findings_of(tmp_path, Change(yaml=TP4, draft_tokenizer={"words": permuted}))
    finding = found["PAIR-TOKENIZER"]
    assert finding.severity == "error"
    assert finding.cause.startswith("6 ids mean different text")
    assert all(f"id {token_id}:" in finding.cause for token_id in (2, 3, 4))
    assert "id 5:" not in finding.cause


def test_added_tokens_beyond_the_base_vocabulary_are_accepted(tmp_path: Path) -> None:
    added = {"special": {0: "<s>", 1: "</s>", **{8 + n: f"<|special_{n}|>" for n in range(256)}}}
    shape = {"vocab_size": 264}
    assert errors_of(tmp_path, {}, target=shape, draft=shape, target_tokenizer=added, draft_tokenizer=added) == set()


@pytest.mark.parametrize(("accepted", "code"), [(0, {"ENGINE-MODE"}), (10, set())])
def test_an_engine_says_how_many_drafts_it_accepts(accepted: int, code: set[str], tmp_path: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["build_config"]["max_draft_len"] = accepted or 5
        document["build_config"]["speculative_decoding_mode"] = 2 if accepted else 1

    assert {finding.code for finding in check_engine(write_engine(tmp_path, edit))} == code


class TestImpossibleCombinations:
    """Each must be named; the last one must be accepted."""

    def test_sinks_with_speculation(self, tmp_path: Path) -> None:
        assert "SINK-SPEC" in errors_of(tmp_path, {"attention_sinks": SINKS, "tensorrt_llm": "1.0"})

    def test_sinks_on_1_2_1(self, tmp_path: Path) -> None:
        assert errors_of(tmp_path, {"attention_sinks": SINKS, **ALONE}) == {"SINK-VERSION"}

    def test_sinks_on_the_llm_api(self, tmp_path: Path) -> None:
        assert errors_of(tmp_path, {"attention_sinks": SINKS, "backend": "llmapi"}) == {"SINK-IGNORED"}

    def test_sinks_with_qwen(self, tmp_path: Path) -> None:
        yaml = {"attention_sinks": SINKS, "tensorrt_llm": "1.0", **ALONE}
        assert "SINK-ARCH" in errors_of(tmp_path, yaml, target_family="qwen2")

    def test_an_fp8_cache_with_bf16_weights_and_speculation(self, tmp_path: Path) -> None:
        assert errors_of(tmp_path, {"kv_cache.dtype": "fp8"}) == {"KV-FP8-FMHA"}

    def test_an_fp8_cache_on_an_a100(self, tmp_path: Path) -> None:
        assert "KV-FP8-SM" in errors_of(tmp_path, {"kv_cache.dtype": "fp8", "gpu.name": "a100", **ALONE})

    def test_an_fp8_cache_with_int8_weights(self, tmp_path: Path) -> None:
        yaml = {"kv_cache.dtype": "fp8", "target.quantization": "int8_weight_only", **ALONE}
        assert errors_of(tmp_path, yaml) == {"KV-COMBO"}

    def test_fp8_weights_with_an_fp8_cache_and_speculation_on_an_h100_are_accepted(self, tmp_path: Path) -> None:
        assert errors_of(tmp_path, FP8_PAIR) == set()
        engine = deployment_of(tmp_path, Change(yaml=TP4 | FP8_PAIR)).engine_spec("target")
        assert engine.paged_context_fmha and engine.fp8_context_fmha

    def test_context_logits_with_drafts(self, tmp_path: Path) -> None:
        def edit(document: dict[str, Any]) -> None:
            document["build_config"]["gather_context_logits"] = True

        assert {finding.code for finding in check_engine(write_engine(tmp_path, edit))} == {"LOGITS-SPEC"}


def test_a_target_without_reuse_is_refused(tmp_path: Path) -> None:
    assert errors_of(tmp_path, {"kv_cache.reuse": False}) == {"SPEC-REUSE"}


def test_two_models_that_cannot_share_a_gpu_are_refused_with_the_shortfall(tmp_path: Path) -> None:
    finding = findings_of(tmp_path, Change(yaml={"gpu.count": 1}))["MEMORY-FIT"]
    assert finding.severity == "error"
    assert "lacks" in finding.cause and "GB" in finding.cause


@pytest.mark.parametrize("quantization", ["none", "fp8", "fp8_rowwise", "int4_awq", "w4a8_awq", "nvfp4"])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8", "int8"])
@pytest.mark.parametrize("gpu", ["a100", "l40s", "h100", "b200"])
def test_the_explained_switches_are_those_of_the_command(
    quantization: str, kv_dtype: str, gpu: str, tmp_path: Path
) -> None:
    """The chain in a finding and the flags of trtllm-build come from different code and must agree."""
    yaml = {"target.quantization": quantization, "kv_cache.dtype": kv_dtype, "gpu.name": gpu}
    deployment = deployment_of(tmp_path, Change(yaml=yaml))
    switch = deployment.outcome("target").paged_context_fmha
    assert switch.on == deployment.engine_spec("target").can_page_context
    assert switch.on == (not switch.because)
