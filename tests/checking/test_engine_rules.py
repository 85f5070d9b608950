"""Every rule about an engine directory has a case that triggers it and one that comes close."""

from pathlib import Path
from typing import Any

import pytest
from engine_folders import Edit, write_engine
from trtkit.checking.folder_checks import check_engine
from trtkit.checking.rules.engine import ENGINE_RULES


def build(**values: Any) -> Edit:
    return lambda document: document["build_config"].update(values)


def plugins(**values: Any) -> Edit:
    return lambda document: document["build_config"]["plugin_config"].update(values)


def reference(document: dict[str, Any]) -> None:
    document["trtkit_reference"] = {"checkpoint": "../../checkpoints/target"}


def both(*edits: Edit) -> Edit:
    def apply(document: dict[str, Any]) -> None:
        for edit in edits:
            edit(document)

    return apply


def half_logits(document: dict[str, Any]) -> None:
    document["pretrained_config"]["logits_dtype"] = "float16"


def version(text: str) -> Edit:
    return lambda document: document.update(version=text)


# code -> (edit that triggers it, edit that comes close)
CASES: dict[str, tuple[Edit, Edit]] = {
    "ENGINE-CHECKPOINT": (reference, lambda document: None),
    "ENGINE-VERSION": (version("1.2.7"), version("1.2.0")),
    "LOGITS-SPEC": (
        build(gather_context_logits=True),
        build(gather_context_logits=True, max_draft_len=0, speculative_decoding_mode=1),
    ),
    "ENGINE-FMHA": (
        plugins(use_paged_context_fmha=False),
        both(plugins(use_paged_context_fmha=False), build(max_draft_len=0, speculative_decoding_mode=1)),
    ),
    "ENGINE-MODE": (
        build(speculative_decoding_mode=8),
        build(speculative_decoding_mode="SpeculativeDecodingMode.DRAFT_TOKENS_EXTERNAL"),
    ),
    "ENGINE-SINKS": (
        plugins(streamingllm=True),
        both(plugins(streamingllm=True), build(max_draft_len=0, speculative_decoding_mode=1)),
    ),
    "ENGINE-LOGITS": (both(half_logits, build(gather_generation_logits=True)), half_logits),
}


def codes(folder: Path) -> set[str]:
    return {finding.code for finding in check_engine(folder)}


def test_every_rule_has_a_case() -> None:
    assert {rule.code for rule in ENGINE_RULES} == {*CASES, "ENGINE-FILES"}


def test_a_sound_engine_gives_no_finding(tmp_path: Path) -> None:
    assert codes(write_engine(tmp_path)) == set()


@pytest.mark.parametrize("code", CASES)
def test_a_rule_triggers_on_its_case(code: str, tmp_path: Path) -> None:
    assert code in codes(write_engine(tmp_path, CASES[code][0]))


@pytest.mark.parametrize("code", CASES)
def test_a_rule_stays_silent_when_it_only_comes_close(code: str, tmp_path: Path) -> None:
    assert code not in codes(write_engine(tmp_path, CASES[code][1]))


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    (finding,) = check_engine(write_engine(tmp_path, ranks=1))
    assert (finding.code, finding.cause) == ("ENGINE-FILES", "rank1.engine missing; config.json announces 2 ranks")


def test_a_reference_engine_has_no_rank_files(tmp_path: Path) -> None:
    assert "ENGINE-FILES" not in codes(write_engine(tmp_path, reference, ranks=0))


@pytest.mark.parametrize(("text", "code"), [(None, "ENGINE-MISSING"), ("{}", "ENGINE-CONFIG"), ("no", "ENGINE-CONFIG")])
def test_an_unreadable_engine_is_one_finding(text: str | None, code: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert codes(tmp_path) == {code}


KEYS = [
    *(("version",), ("trtkit_reference",), ("pretrained_config",), ("build_config",)),
    *(("pretrained_config", key) for key in ("architecture", "dtype", "vocab_size", "mapping", "quantization")),
    *(("pretrained_config", "mapping", "world_size"), ("pretrained_config", "quantization", "quant_algo")),
    *(("build_config", key) for key in ("max_batch_size", "max_seq_len", "max_draft_len", "plugin_config")),
    ("build_config", "plugin_config", "tokens_per_block"),
]


@pytest.mark.parametrize("value", [[1], 0.5, "x", {"a": 1}, 2**70, -1, True], ids=repr)
@pytest.mark.parametrize("path", KEYS, ids=".".join)
def test_a_value_of_the_wrong_type_is_a_finding_and_no_traceback(
    path: tuple[str, ...], value: object, tmp_path: Path
) -> None:
    def spoil(document: dict[str, Any]) -> None:
        section = document
        for key in path[:-1]:
            section = section[key]
        section[path[-1]] = value

    for finding in check_engine(write_engine(tmp_path, spoil)):
        assert finding.where.startswith(str(tmp_path))
