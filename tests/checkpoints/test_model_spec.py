"""config.json of every family, in the forms that transformers 4 and 5 write it."""

from pathlib import Path
from typing import Any

import pytest
import tiny
from trtkit.checkpoints.model_spec import ModelSpec, read_model_spec
from trtkit.conversion.options import ConversionOptions
from trtkit.conversion.trtllm_config import checkpoint_config
from trtkit.errors import CheckpointError
from trtkit.reference.model.families import ACTIVATIONS

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def spec_of(folder: Path, family: str = "llama", **changes: Any) -> ModelSpec:
    folder.mkdir(exist_ok=True)
    tiny.write_json(folder / "config.json", tiny.tiny_config(family, **changes))
    return read_model_spec(folder)


def test_the_shape_of_a_model_is_read(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert (spec.family, spec.architecture) == ("llama", "LlamaForCausalLM")
    assert (spec.num_layers, spec.hidden_size, spec.intermediate_size) == (3, 64, 96)
    assert (spec.num_q_heads, spec.num_kv_heads, spec.head_dim) == (4, 2, 16)
    assert (spec.vocab_size, spec.max_seq_len, spec.norm_eps) == (320, 256, 1e-5)
    assert spec.dtype == "float32"


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        LLAMA3,
        LONGROPE,
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_every_rope_kind_reaches_the_converted_config_whole(scaling: dict[str, Any], tmp_path: Path) -> None:
    spec = spec_of(tmp_path, rope_scaling=scaling)
    assert spec.rope_scaling == scaling
    assert checkpoint_config(spec, ConversionOptions(dtype="float16"))["rotary_scaling"] == scaling


def test_old_and_new_spelling_of_rope_mean_the_same(tmp_path: Path) -> None:
    old = spec_of(tmp_path, rope_theta=500000.0, rope_scaling={**LLAMA3, "type": "llama3"})
    new = spec_of(tmp_path, rope_parameters={**LLAMA3, "rope_theta": 500000.0})
    assert (old.rope_theta, old.rope_scaling) == (new.rope_theta, new.rope_scaling) == (500000.0, LLAMA3)


def test_the_kind_default_is_no_scaling(tmp_path: Path) -> None:
    assert spec_of(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 7.0}).rope_scaling is None


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
GEMMA3_PLAIN = {"rope_type": "default", "rope_theta": 1e4}
IMPOSSIBLE_ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "an attention factor that is NaN": ("llama", {"rope_scaling": {**YARN, "attention_factor": float("nan")}}),
    "infinite long factors": ("phi3", {"rope_scaling": {**LONGROPE, "long_factor": [float("inf")] * 8}}),
    "factors that are flags": ("phi3", {"rope_scaling": {**LONGROPE, "short_factor": [True] * 8}}),
    "a beta that is text": ("llama", {"rope_scaling": {**YARN, "beta_fast": "x"}}),
    "a length that is text": ("llama", {"rope_scaling": {**YARN, "original_max_position_embeddings": "64"}}),
    "NaN under any key": ("llama", {"rope_scaling": {**YARN, "other": [{"x": float("nan")}]}}),
    "a head turned twice": ("llama", {"partial_rotary_factor": 2.0}),
    "nothing turned": ("llama", {"partial_rotary_factor": 0.01}),
    "half a pair turned": ("llama", {"partial_rotary_factor": 3 / 16}),
    "llama3 factors the wrong way round": ("llama", {"rope_scaling": {**LLAMA3, "low_freq_factor": 5.0}}),
    "equal llama3 factors": ("llama", {"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}),
    "a factor and no kind": ("llama", {"rope_scaling": {"factor": 2.0}}),
    "a factor and a kind of null": ("llama", {"rope_scaling": {"type": None, "factor": 2.0}}),
    "sliding layers that are scaled": (
        "gemma3",
        {"rope_parameters": {"full_attention": GEMMA3_PLAIN, "sliding_attention": {**YARN, "rope_theta": 1e4}}},
    ),
    "sliding layers with a base that has no place": (
        "llama",
        {"rope_parameters": {"full_attention": GEMMA3_PLAIN, "sliding_attention": {**GEMMA3_PLAIN, "rope_theta": 1e6}}},
    ),
}


@pytest.mark.parametrize(("family", "changes"), IMPOSSIBLE_ROPES.values(), ids=IMPOSSIBLE_ROPES)
def test_a_rope_that_no_engine_turns_is_refused(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        spec_of(tmp_path, family, **changes)
    assert caught.value.code == "CKPT-ROPE"


@pytest.mark.parametrize("scaling", [{}, {"rope_type": None}, {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}])
def test_a_rope_section_without_kind_and_factors_is_plain(scaling: dict[str, Any], tmp_path: Path) -> None:
    assert spec_of(tmp_path, rope_parameters=scaling).rope_scaling is None


def test_a_rope_for_sliding_layers_alone_leaves_the_others_plain(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "gemma3", rope_parameters={"sliding_attention": {**GEMMA3_PLAIN, "rope_theta": 2e4}})
    assert (spec.rope_theta, spec.rope_local_theta, spec.rope_scaling) == (1e6, 2e4, None)


def test_phi3_with_longrope_is_converted_to_long_rope(tmp_path: Path) -> None:
    scaling = {"type": "su", "short_factor": LONGROPE["short_factor"], "long_factor": LONGROPE["long_factor"]}
    config = checkpoint_config(spec_of(tmp_path, "phi3", rope_scaling=scaling), ConversionOptions(dtype="float16"))
    assert config["position_embedding_type"] == "long_rope"
    assert config["longrope_scaling_short_factors"] == LONGROPE["short_factor"]
    assert config["longrope_scaling_long_factors"] == LONGROPE["long_factor"]
    assert config["original_max_position_embeddings"] == 256


def test_gemma3_has_two_rope_bases_in_both_forms(tmp_path: Path) -> None:
    old = spec_of(tmp_path, "gemma3")
    parameters = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    new = spec_of(tmp_path, "gemma3", rope_parameters=parameters)
    assert (old.rope_theta, old.rope_local_theta) == (new.rope_theta, new.rope_local_theta) == (1e6, 1e4)
    assert old.layer_is_sliding == (True, False, True)


@pytest.mark.parametrize(
    ("family", "changes", "window", "sliding"),
    [
        ("llama", {}, None, ()),
        ("mistral", {"sliding_window": 16}, 16, (True, True, True)),
        ("mistral", {"sliding_window": None}, None, ()),
        ("qwen2", {"sliding_window": 16}, None, ()),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2}, 16, (False, False, True)),
        ("gemma2", {}, 16, (True, False, True)),
    ],
)
def test_the_sliding_window_and_its_layers(
    family: str, changes: dict[str, Any], window: int | None, sliding: tuple[bool, ...], tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, family, **changes)
    assert (spec.sliding_window, spec.layer_is_sliding) == (window, sliding)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"hidden_act": "xyz"}),
        ("gemma2", {"hidden_activation": "xyz"}),
        ("llama", {"hidden_act": "relu2"}),
        ("mixtral", {"hidden_act": "relu"}),
        ("phi3", {"hidden_act": "gelu"}),
    ],
)
def test_an_activation_that_the_engine_would_not_compute_is_refused(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=next(iter(changes.values()))) as caught:
        spec_of(tmp_path, family, **changes)
    assert caught.value.code == "CKPT-CONFIG"


def test_every_activation_of_the_reference_engine_can_be_converted(tmp_path: Path) -> None:
    assert [spec_of(tmp_path, hidden_act=name).hidden_act for name in ACTIVATIONS] == list(ACTIVATIONS)


def test_transformers_reads_the_same_numbers(tmp_path: Path) -> None:
    """transformers is the reference for what a config means, so its attributes are compared for every family."""
    from transformers import AutoConfig

    for family in tiny.FAMILIES:
        spec = spec_of(tmp_path / family, family)
        config = AutoConfig.from_pretrained(tmp_path / family)
        assert spec.num_layers == config.num_hidden_layers, family
        assert spec.hidden_size == config.hidden_size, family
        assert spec.num_q_heads == config.num_attention_heads, family
        assert spec.vocab_size == config.vocab_size, family
        assert spec.tie_word_embeddings == config.tie_word_embeddings, family
