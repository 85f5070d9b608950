"""The build YAML: every mistake in one message, unknown keys with a suggestion, --set over the file."""

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
        ({"limits": {"max_batch_size": 0}}, "limits.max_batch_size: Input should be greater than 0"),
        ({"limits": {"max_batch_size": True}}, "limits.max_batch_size: Input should be a valid integer"),
        ({"limits": {"max_batch_size": "8"}}, "limits.max_batch_size: Input should be a valid integer"),
        ({"kv_cache": {"reuse": 1}}, "kv_cache.reuse: Input should be a valid boolean"),
        ({"kv_cache": {"block_size": 48}}, "block_size 48 is not a power of two"),
        ({"draft": None}, "draft_target needs a draft section"),
        ({"speculation": {"kind": "none"}}, "a draft is given, but speculation.kind is none"),
        ({"serving": {"http_port": 9000, "grpc_port": 9000}}, "must differ"),
        ({"target": {"checkpoint": "t", "tensor_parallel": 4, "expert_parallel": 3}}, "does not divide"),
        ({"attention_sinks": {"window_tokens": 64, "evict_tokens": 65}}, "exceeds window_tokens"),
        ({"name": "../up"}, "name: String should match"),
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
