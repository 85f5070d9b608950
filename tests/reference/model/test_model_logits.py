"""The decoder computes what transformers computes from the same weights, and refuses what it would compute wrongly."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lone_sequence import lone_sequence
from oracles import largest_relative_difference, oracle_logits, prompt_of
from tiny_trtllm import edit_checkpoint, edit_tensors, tiny_model, write_checkpoint
from trtkit.errors import CheckpointError
from trtkit.reference.model.config import read_config

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped query heads": {},
    "one query head per key head": {"num_key_value_heads": 6},
    "one key head": {"num_key_value_heads": 1},
    "head size of its own": {"head_dim": 16},
    "biases everywhere": {"attention_bias": True, "mlp_bias": True},
    "tied embeddings": {"tie_word_embeddings": True},
    "Qwen2": {"model_type": "qwen2"},
    "Qwen3": {"model_type": "qwen3", "head_dim": 8},
    "Mistral": {"model_type": "mistral", "sliding_window": None},
    "linear rope scaling": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "Llama 3.1 rope scaling": {"rope_parameters": LLAMA3_SCALING},
}


def prompt(count: int) -> list[int]:
    return prompt_of(count, 97, seed=count)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    model = tiny_model(**VARIANTS[variant])
    decoder = lone_sequence(write_checkpoint(model, tmp_path))
    token_ids = prompt(150)
    ours = decoder.feed(token_ids)
    assert largest_relative_difference(ours, oracle_logits(model, token_ids)) < 1e-4


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (6, 1), (1, 2), (2, 3)])
def test_rank_files_are_assembled(tp: int, pp: int, tmp_path: Path) -> None:
    model = tiny_model(attention_bias=True)
    token_ids = prompt(20)
    whole = lone_sequence(write_checkpoint(model, tmp_path / "whole")).feed(token_ids)
    ranks = lone_sequence(write_checkpoint(model, tmp_path / "ranks", tp=tp, pp=pp)).feed(token_ids)
    assert torch.equal(whole, ranks)


def test_a_missing_head_is_the_embedding(tmp_path: Path) -> None:
    model = tiny_model(tie_word_embeddings=True)
    folder = write_checkpoint(model, tmp_path)
    with_head = lone_sequence(folder).feed([1, 2, 3])
    assert torch.equal(with_head, lone_sequence(edit_tensors(folder, lm_head__weight=None)).feed([1, 2, 3]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_close_to_float32(dtype: str, tmp_path: Path) -> None:
    model = tiny_model()
    token_ids = prompt(40)
    ours = lone_sequence(write_checkpoint(model, tmp_path, dtype=dtype)).feed(token_ids)
    assert ours.dtype == torch.float32
    # A bfloat16 keeps 8 significant bits; 3 layers round about 40 times, errors add up like a random walk.
    assert largest_relative_difference(ours, oracle_logits(model, token_ids)) < 40**0.5 * 2**-8


def test_packed_and_plain_weights_give_the_same_logits(tmp_path: Path) -> None:
    folder = write_checkpoint(tiny_model(), tmp_path)
    token_ids = prompt(70)
    packed, plain = (lone_sequence(folder, packed=packed).feed(token_ids) for packed in (True, False))
    assert largest_relative_difference(packed, plain) < 1e-5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "GPTForCausalLM"}, "architecture GPTForCausalLM"),
        ({"dtype": "float8"}, "dtype float8"),
        ({"hidden_act": "relu"}, "hidden_act relu"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type alibi"),
        ({"rotary_scaling": {"rope_type": "mrope", "factor": 2.0}}, "rotary_scaling of type mrope"),
        ({"quantization": {"quant_algo": "MIXED_PRECISION"}}, "quantization MIXED_PRECISION"),
        ({"quantization": {"quant_algo": "W4A16_AWQ", "has_zero_point": True}}, "weights with zero points"),
        ({"quantization": {"quant_algo": None, "kv_cache_quant_algo": "NVFP4"}}, "KV cache quantization NVFP4"),
        ({"moe": {"num_experts": 8, "top_k": 2, "normalization_mode": 2}}, "experts normalised in mode 2"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier = 12.0"),
        ({"qk_layernorm": True}, "norms of query and key heads"),
        ({"rotary_embedding_dim": 5}, "rotation of 5 elements"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = edit_checkpoint(write_checkpoint(tiny_model(), tmp_path), **changes)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_config(folder)
    assert caught.value.code == "REF-UNSUPPORTED"


def test_all_unsupported_features_are_named_at_once(tmp_path: Path) -> None:
    folder = edit_checkpoint(write_checkpoint(tiny_model(), tmp_path), hidden_act="relu", dtype="float8")
    with pytest.raises(CheckpointError, match=r"dtype float8, hidden_act relu"):
        read_config(folder)


def test_a_folder_without_config_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing") as caught:
        read_config(tmp_path)
    assert caught.value.code == "REF-MISSING"


@pytest.mark.parametrize("text", ["", "[]", '{"architecture": "LlamaForCausalLM"}'])
def test_a_damaged_config_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        read_config(tmp_path)
    assert caught.value.code == "REF-CONFIG"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm_epsilon": "x", "hidden_size": 0}, "hidden_size 0, norm_epsilon 'x'"),
        ({"num_hidden_layers": 2.0}, r"num_hidden_layers 2\.0"),
        ({"rotary_base": -1}, "rotary_base -1"),
        ({"rotary_scaling": {"type": "linear"}}, "rotary_scaling factor None"),
        ({"rotary_scaling": {"rope_type": "yarn", "factor": 0}}, "rotary_scaling factor 0"),
        ({"num_key_value_heads": 4}, "no multiple"),
        ({"mapping": {"world_size": 3, "tp_size": 1, "pp_size": 1}}, "world_size 3"),
    ],
)
def test_numbers_that_describe_no_model_are_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = edit_checkpoint(write_checkpoint(tiny_model(), tmp_path), **changes)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_config(folder)
    assert caught.value.code == "REF-CONFIG"


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = edit_tensors(write_checkpoint(tiny_model(), tmp_path), transformer__layers__1__mlp__fc__weight=None)
    with pytest.raises(CheckpointError, match=r"lacks transformer\.layers\.1\.mlp\.fc\.weight"):
        lone_sequence(folder)


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    folder = edit_tensors(write_checkpoint(tiny_model(), tmp_path), transformer__extra=torch.zeros(1))
    with pytest.raises(CheckpointError, match=r"first transformer\.extra"):
        lone_sequence(folder)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = edit_checkpoint(write_checkpoint(tiny_model(), tmp_path), intermediate_size=81)
    with pytest.raises(CheckpointError, match=r"mlp\.proj\.weight has the shape \(48, 80\)") as caught:
        lone_sequence(folder)
    assert caught.value.code == "REF-SHAPE"


def test_a_truncated_rank_file_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tiny_model(), tmp_path)
    path = folder / "rank0.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"cannot read rank0\.safetensors"):
        lone_sequence(folder)


def test_a_missing_rank_file_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tiny_model(), tmp_path, tp=2)
    (folder / "rank1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"rank1\.safetensors"):
        lone_sequence(folder)


def test_a_rank_that_is_no_file_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tiny_model(), tmp_path)
    (folder / "rank0.safetensors").unlink()
    (folder / "rank0.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="REF-FILE"):
        lone_sequence(folder)


def test_ranks_that_were_cut_differently_are_shown_side_by_side(tmp_path: Path) -> None:
    folder = write_checkpoint(tiny_model(), tmp_path / "two", tp=2)
    whole = write_checkpoint(tiny_model(), tmp_path / "one") / "rank0.safetensors"
    whole.rename(folder / "rank0.safetensors")
    with pytest.raises(CheckpointError, match=r"on its ranks the shapes \(80, 48\) and \(40, 48\)") as caught:
        lone_sequence(folder)
    assert caught.value.code == "REF-SHAPE"


def test_a_norm_of_integers_is_refused(tmp_path: Path) -> None:
    ones = torch.ones(48, dtype=torch.int8)
    folder = edit_tensors(write_checkpoint(tiny_model(), tmp_path), transformer__ln_f__weight=ones)
    with pytest.raises(CheckpointError, match=r"transformer\.ln_f\.weight is stored as int8"):
        lone_sequence(folder)
