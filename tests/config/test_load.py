"""The build YAML: every mistake in one message, unknown keys with a suggestion, --set over the file."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from trtkit.config.load import load_config, parse_config
from trtkit.config.presets import presets
from trtkit.errors import ConfigError

MINIMAL: dict[str, Any] = {"name": "x", "target": {"checkpoint": "models/t"}}
PAIR: dict[str, Any] = {
    **MINIMAL,
    "draft": {"checkpoint": "models/d"},
    "speculation": {"kind": "draft_target", "max_draft_len": 3},
}


def write(folder: Path, text: str) -> Path:
    path = folder / "pair.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", presets().values(), ids=lambda p: p.stem)
def test_every_preset_loads_and_is_named_after_its_file(path: Path) -> None:
    assert load_config(path).name.replace("-", "_") == path.stem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_cach": {}}, "kv_cach: unknown key, did you mean kv_cache?"),
        ({"target": {"checkpoint": "t", "dtyp": 1}}, "target.dtyp: unknown key, did you mean dtype?"),
        ({"speculation": {"kind": "draft_target", "max_drat_len": 2}}, "did you mean max_draft_len?"),
        ({"limits": {"max_batch_size": 0}}, "limits.max_batch_size: must be at least 1, not 0"),
        ({"limits": {"max_batch_size": 10**20}}, "limits.max_batch_size: must be at most 2147483647, not 10"),
        ({"limits": {"max_batch_size": True}}, "limits.max_batch_size: must be a whole number, not true"),
        ({"limits": {"max_batch_size": "8"}}, "limits.max_batch_size: must be a whole number, not 8"),
        ({"limits": {"max_batch_size": float("nan")}}, "limits.max_batch_size: must be a whole number, not nan"),
        ({"limits": None}, "limits: the section is empty; write its keys, or leave it out"),
        ({"gpu": "h100"}, "gpu: must be a section with keys of its own, not h100"),
        ({"target": {"checkpoint": "t", "tensor_parallel": 10**11}}, "target.tensor_parallel: must be at most 1024"),
        ({"target": {"checkpoint": " "}}, "target.checkpoint: is empty"),
        ({"target": {"checkpoint": "a\0b"}}, "target.checkpoint: holds a zero character"),
        ({"target": {}}, "target.checkpoint: is missing"),
        (
            {"target": {"checkpoint": "t", "dtype": "bf16"}},
            "target.dtype: bf16 is none of float32, float16, bfloat16, did you mean bfloat16?",
        ),
        ({"backend": 3}, "backend: 3 is none of auto, engine, llmapi, reference"),
        ({"speculation": {"kind": "draft"}}, "speculation: kind draft is unknown, did you mean draft_target?"),
        ({"speculation": {"max_draft_len": 2}}, "lacks its key kind; write kind: none or kind: draft_target"),
        ({"speculation": None}, "speculation: the section is empty"),
        ({"name": None}, "name: is empty"),
        ({"name": True}, "name: YAML reads true as yes or no; write it in quotes"),
        ({"name": datetime.date(2026, 1, 2)}, "name: YAML reads 2026-01-02 as a date; write it in quotes"),
        ({"name": ["x"]}, "name: must be a text, not ['x']"),
        ({"verification": {"min_identical": float("nan")}}, "verification.min_identical: must be at most 1.0, not nan"),
        ({"verification": {"max_ttft_ms": float("inf")}}, "verification.max_ttft_ms: must be a finite number, not inf"),
        ({"kv_cache": {"reuse": 1}}, "kv_cache.reuse: must be true or false (without quotes), not 1"),
        ({"kv_cache": {"block_size": 2**80}}, "kv_cache.block_size: must be at most 1024"),
        ({"kv_cache": {"block_size": 48}}, "block_size 48 is not a power of two"),
        ({"draft": None}, "draft_target needs a draft section"),
        ({"speculation": {"kind": "none"}}, "a draft is given, but speculation.kind is none"),
        ({"serving": {"http_port": 9000, "grpc_port": 9000}}, "must differ"),
        ({"target": {"checkpoint": "t", "tensor_parallel": 4, "expert_parallel": 3}}, "does not divide"),
        ({"attention_sinks": {"window_tokens": 64, "evict_tokens": 65}}, "exceeds window_tokens"),
        ({"name": "../up"}, "name: must be letters, digits, dots, dashes and underscores, a letter or a digit first"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match="is not a build config") as caught:
        parse_config(PAIR | change, where="pair.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize("key", ["streamingllm", "streaming_llm", "StreamingLLM"])
def test_the_word_for_sinks_that_sounds_like_streaming_is_explained(key: str) -> None:
    with pytest.raises(ConfigError, match="attention_sinks keeps endless sessions"):
        parse_config({**MINIMAL, key: True}, where="x.yaml")


@pytest.mark.parametrize(
    ("section", "key", "meant"),
    [
        ("limits", "max_seq_len", "max_input_len + max_output_len"),
        ("limits", "max_num_tokens", "it follows from the limits"),
        ("limits", "max_beam_width", "a build has one beam"),
        ("kv_cache", "kv_cache_free_gpu_mem_fraction", "`trtkit plan` states it"),
        ("kv_cache", "use_paged_context_fmha", "kv_cache.reuse"),
        ("kv_cache", "enable_block_reuse", "kv_cache: {reuse: true}"),
        ("kv_cache", "sink_token_length", "attention_sinks"),
        ("limits", "gather_context_logits", "acceptance: logits"),
        ("serving", "num_draft_tokens", "speculation.max_draft_len"),
    ],
)
def test_a_name_of_tensorrt_llm_brings_what_stands_for_it(section: str, key: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({**MINIMAL, section: {key: 1}}, where="x.yaml")
    line = next(line for line in str(caught.value).splitlines() if key in line)
    assert line.strip().startswith(f"{section}.{key}: unknown key; ") and meant in line


def test_all_mistakes_come_in_one_message() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({**MINIMAL, "a": 1, "b": 2, "limits": {"max_input_len": "many"}}, where="x.yaml")
    assert all(key in str(caught.value) for key in ("a: unknown", "b: unknown", "limits.max_input_len"))


def test_a_key_of_the_other_kind_of_speculation_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match=r"speculation\.max_draft_len: not a key of kind none"):
        parse_config({**MINIMAL, "speculation": {"kind": "none", "max_draft_len": 2}}, where="x.yaml")


def test_a_version_that_yaml_reads_as_a_number_is_to_be_quoted() -> None:
    with pytest.raises(ConfigError, match=r"tensorrt_llm: YAML reads 1\.2 as a number; write it in quotes"):
        parse_config({**MINIMAL, "tensorrt_llm": 1.2}, where="x.yaml")


def test_set_wins_over_the_file_and_makes_missing_sections(tmp_path: Path) -> None:
    path = write(tmp_path, "name: x\ntarget: {checkpoint: t, dtype: float16}\n")
    config = load_config(path, ["target.dtype=float32", "limits.max_batch_size=3"])
    assert (config.target.dtype, config.limits.max_batch_size) == ("float32", 3)


@pytest.mark.parametrize("override", ["target.dtype", "=1", "target..dtype=1", "name.first=1", "target.dtype=[", ""])
def test_a_broken_set_is_refused(tmp_path: Path, override: str) -> None:
    path = write(tmp_path, "name: x\ntarget: {checkpoint: t}\n")
    with pytest.raises(ConfigError):
        load_config(path, [override])


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n", "name: \x00\n", "just words"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "name: a\nname: b\ntarget: {checkpoint: t}\n",
            r"name stands in line 1\s+and once more\s+in .pair\.yaml., line 2",
        ),
        ("name: a\ntarget:\n  checkpoint: t\n  checkpoint: u\n", r"checkpoint stands in line 3"),
        ("name: a\ntarget: {checkpoint: t, checkpoint: u}\n", r"checkpoint stands in line 2"),
        ("name: a\ntarget:\n\tcheckpoint: t\n", r"in .pair\.yaml., line 3"),
        ("name: a\ntarget: {checkpoint: t}\n---\nname: b\n", "single document"),
        ("name: a\ntarget: " + "{a: " * 5000 + "1" + "}" * 5000 + "\n", "nests too deep"),
        ("name: a\ntarget: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
    ],
)
def test_what_yaml_would_guess_at_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load_config(write(tmp_path, text))
    assert caught.value.code == "CONFIG-FILE" and "pair.yaml" in caught.value.cause


def test_merged_keys_may_be_overridden_and_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    text = "\ufeffname: x\ntarget: &t {checkpoint: t, dtype: float16}\ndraft: {<<: *t, dtype: float32}\n"
    config = load_config(write(tmp_path, text + "speculation: {kind: draft_target}\n"))
    assert config.draft is not None
    assert (config.target.dtype, config.draft.dtype, config.draft.checkpoint) == ("float16", "float32", "t")


def test_set_changes_one_of_two_sections_that_are_the_same_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "name: x\ntarget: &t {checkpoint: t}\ndraft: *t\nspeculation: {kind: draft_target}\n")
    config = load_config(path, ["draft.dtype=float32"])
    assert config.draft is not None
    assert (config.target.dtype, config.draft.dtype) == ("bfloat16", "float32")


def test_set_may_have_spaces_around_its_keys(tmp_path: Path) -> None:
    path = write(tmp_path, "name: x\ntarget: {checkpoint: t}\n")
    assert load_config(path, ["limits . max_batch_size = 3"]).limits.max_batch_size == 3


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_the_effective_lengths_are_derived() -> None:
    config = parse_config({**PAIR, "limits": {"max_input_len": 100, "max_output_len": 20}}, where="x")
    assert config.limits.max_seq_len == 120
    assert config.max_draft_len == 3
    assert list(config.models) == ["target", "draft"]
