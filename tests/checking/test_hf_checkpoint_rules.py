"""A Hugging Face checkpoint: damaged files become findings with their codes; notes have near misses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import FAMILIES, tensor_shapes, tiny_checkpoint, tiny_config, tiny_tensor, write_json, write_weights
from trtkit.checking.folder_checks import check_hf_checkpoint
from trtkit.checking.rules.hf_checkpoint import HF_RULES
from trtkit.checking.subjects.hf_checkpoint import read_hf_checkpoint

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4976698672\n"


def checkpoint(folder: Path, **overrides: Any) -> Path:
    return tiny_checkpoint(folder / "model", tokenizer=True, **overrides)


def codes(folder: Path) -> set[str]:
    return {finding.code for finding in check_hf_checkpoint(folder)}


def edit_json(path: Path, **values: Any) -> None:
    write_json(path, {**json.loads(path.read_text()), **values})


def test_every_rule_is_tested_here() -> None:
    text = Path(__file__).read_text()
    assert [rule.code for rule in HF_RULES if f'"{rule.code}"' not in text] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_checkpoint_gives_no_finding(family: str, tmp_path: Path) -> None:
    assert check_hf_checkpoint(tiny_checkpoint(tmp_path, family, tokenizer=True)) == []


def test_a_git_lfs_pointer_suggests_git_lfs_pull(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, max_shard_bytes=100_000)
    (folder / "model-00001-of-00004.safetensors").write_text(LFS)
    shard = next(folder.glob("model-00001-*"))
    shard.write_text(LFS)
    (finding,) = check_hf_checkpoint(folder)
    assert finding.code == "CKPT-LFS"
    assert "git lfs pull" in finding.fix


def test_a_truncated_file_is_found_from_its_header(tmp_path: Path) -> None:
    path = checkpoint(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert codes(path.parent) == {"CKPT-TRUNCATED"}


def test_a_shard_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, max_shard_bytes=100_000)
    sorted(folder.glob("model-*.safetensors"))[-1].unlink()
    assert codes(folder) == {"CKPT-MISSING"}


def test_an_untied_head_must_be_there_and_a_tied_one_need_not(tmp_path: Path) -> None:
    tied = checkpoint(tmp_path, tie_word_embeddings=True)
    assert codes(tied) == set()
    edit_json(tied / "config.json", tie_word_embeddings=False)
    (finding,) = check_hf_checkpoint(tied)
    assert finding.code == "CKPT-MISSING"
    assert "lm_head.weight" in finding.cause


@pytest.mark.parametrize(
    "scaling",
    [
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {"type": "linear", "factor": 4.0},
        None,
    ],
)
def test_known_rope_settings_are_accepted(scaling: Any, tmp_path: Path) -> None:
    assert codes(checkpoint(tmp_path, rope_scaling=scaling)) == set()


def test_an_unknown_rope_kind_is_refused_by_name(tmp_path: Path) -> None:
    (finding,) = check_hf_checkpoint(checkpoint(tmp_path, rope_scaling={"rope_type": "spiral", "factor": 2.0}))
    assert finding.code == "CKPT-ROPE"
    assert "spiral" in finding.cause


def test_pickles_are_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert codes(folder) == {"CKPT-PICKLE"}


def test_heads_of_100_elements_are_refused(tmp_path: Path) -> None:
    assert "CKPT-HEAD-SIZE" in codes(checkpoint(tmp_path, head_dim=100))


def test_a_missing_tokenizer_and_a_slow_one_are_told_apart(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    (folder / "tokenizer.json").unlink()
    (finding,) = check_hf_checkpoint(folder)
    assert (finding.code, finding.cause) == ("TOK-MISSING", "the folder has no tokenizer")
    (folder / "tokenizer.model").write_bytes(b"")
    (finding,) = check_hf_checkpoint(folder)
    assert "only tokenizer.model is there" in finding.cause


def test_a_tokenizer_that_is_a_program_is_named_and_not_run(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenization_qwen.py").write_text("raise SystemExit(1)\n")
    (folder / "qwen.tiktoken").write_text("IQ== 0\n")
    (finding,) = check_hf_checkpoint(folder)
    assert finding.code == "TOK-MISSING" and "a program (tokenization_qwen.py)" in finding.cause
    assert "trust_remote_code=True" in finding.fix


@pytest.mark.parametrize("text", ["{}", "[1]", "no json", '{"model": {"vocab": 3}}'])
def test_a_damaged_tokenizer_is_one_finding(text: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    (folder / "tokenizer.json").write_text(text)
    assert codes(folder) == {"TOK-UNREADABLE"}


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    document = json.loads((folder / "tokenizer.json").read_text())
    document["added_tokens"].append({"id": 319, "content": "<last>", "special": True})
    write_json(folder / "tokenizer.json", document)
    assert "TOK-BEYOND" not in codes(folder)
    document["added_tokens"][-1]["id"] = 320
    write_json(folder / "tokenizer.json", document)
    assert "TOK-BEYOND" in codes(folder)


def test_a_dtype_that_contradicts_the_weights_is_a_note(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, dtype="float16")
    edit_json(folder / "config.json", dtype="bfloat16")
    assert {(f.code, f.severity) for f in check_hf_checkpoint(folder)} == {("CKPT-OTHER-DTYPE", "note")}


@pytest.mark.parametrize(
    ("template", "adds", "expected"),
    [("{{ bos_token }}", True, True), ("{{ bos_token }}", False, False), ("{{ x }}", True, False)],
)
def test_a_doubled_bos_is_a_note(template: str, adds: bool, expected: bool, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    edit_json(folder / "tokenizer_config.json", chat_template=template, add_bos_token=adds)
    assert ("TOK-BOS" in codes(folder)) == expected


def with_kv_scales(folder: Path, scales: dict[int, float], quantized: bool = True) -> Path:
    """A checkpoint with scales of keys and values as ModelOpt exports them."""
    model = checkpoint(folder)
    tensors = {name: tiny_tensor(name, shape) for name, shape in tensor_shapes("llama", tiny_config("llama"))}
    for layer, value in scales.items():
        for half in ("k", "v"):
            name = f"model.layers.{layer}.self_attn.{half}_proj.{half}_scale"
            tensors[name] = np.array([value], dtype=np.float32)
    write_weights(model, tensors, "float32")
    if quantized:
        section = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
        write_json(model / "hf_quant_config.json", {"quantization": section})
    return model


@pytest.mark.parametrize(
    ("scales", "code"),
    [
        ({}, "SCALE-ABSENT"),
        ({0: 1.0, 1: 1.0, 2: 1.0}, "SCALE-CONSTANT"),
        ({0: 0.003, 1: 0.02, 2: 0.05}, "SCALE-CALIBRATED"),
        ({0: 0.003, 2: 0.05}, "SCALE-INCOMPLETE"),
        ({0: 0.003, 1: float("inf"), 2: 0.05}, "SCALE-INVALID"),
    ],
)
def test_the_scales_of_a_quantised_checkpoint_are_audited(scales: dict[int, float], code: str, tmp_path: Path) -> None:
    assert code in codes(with_kv_scales(tmp_path, scales))


def test_scales_that_no_file_announces_are_named(tmp_path: Path) -> None:
    assert "CKPT-KV-SCALES" in codes(with_kv_scales(tmp_path, {1: 0.5}, quantized=False))
    assert "CKPT-KV-SCALES" not in codes(with_kv_scales(tmp_path / "announced", {1: 0.5}))


def test_a_compressed_tensors_checkpoint_is_recognised(tmp_path: Path) -> None:
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"type": "float", "num_bits": 8}}
    assert codes(checkpoint(tmp_path, quantization_config=scheme)) == {"SCALE-ABSENT"}


@pytest.mark.parametrize(
    ("token_ids", "found"), [([0, 5, 9], set()), ([5, 5], {"CKPT-VOCABULARY"}), ([10**6], {"CKPT-VOCABULARY"})]
)
def test_a_drafts_own_vocabulary_is_rising_ids_of_the_model(
    token_ids: list[int], found: set[str], tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path)
    (folder / "draft_vocabulary.json").write_text(json.dumps({"token_ids": token_ids}))
    assert codes(folder) == found


def test_a_config_that_announces_a_billion_layers_is_told_at_once(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", num_hidden_layers=1)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 10**9}))
    checkpoint, problems = read_hf_checkpoint(folder, converts=True)
    assert [problem.code for problem in problems if problem.code.startswith("CKPT")] == ["CKPT-MISSING"]
    assert len(checkpoint.scale_audit.missing) < 100
