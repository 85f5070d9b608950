"""A draft's vocabulary padded to its target's: real rows stay, added ones never win, and the engine runs on it."""

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from converted import read_config
from reassembly import hf_tensors
from safetensors.torch import load_file, save_file
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import InputError
from trtkit.reference.engine import Engine
from trtkit.reference.request import GenerationRequest
from trtkit.reference.sampling.params import SamplingParams

OWN, PADDED = 321, 352


def padded(folder: Path, family: str = "llama", **options: object) -> tuple[Path, Path]:
    """(source, converted), float32."""
    source = tiny.tiny_checkpoint(folder / "source", family, vocab_size=OWN)
    chosen = ConversionOptions(dtype="float32", pad_vocab_to=PADDED, **options)  # type: ignore[arg-type]
    convert_to(source, folder / "out", chosen)
    return source, folder / "out"


@pytest.mark.parametrize("family", ["llama", "gemma", "gpt2", "phi3"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tensor_parallel": 2},
        {"tensor_parallel": 4, "pipeline_parallel": 3},
        {"tensor_parallel": 4, "use_parallel_embedding": True},
        {"tensor_parallel": 2, "use_parallel_embedding": True, "embedding_sharding_dim": 1},
    ],
    ids=str,
)
def test_real_rows_stay_and_the_others_are_their_mean(family: str, options: dict[str, object], tmp_path: Path) -> None:
    source, out = padded(tmp_path, family, **options)
    assert read_config(out)["vocab_size"] == PADDED
    convert_to(source, tmp_path / "plain", ConversionOptions(dtype="float32"))
    before, after = hf_tensors(tmp_path / "plain"), hf_tensors(out)
    for name, values in before.items():
        if len(values) != OWN:
            assert np.array_equal(after[name], values), name
            continue
        assert after[name].shape == (PADDED, values.shape[1])
        assert np.array_equal(after[name][:OWN], values), name
        assert np.allclose(after[name][OWN:], values.mean(axis=0), atol=1e-7), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_logit_of_an_added_token_is_never_the_largest(dtype: torch.dtype, tmp_path: Path) -> None:
    """Not even where every real logit is negative, which a row of zeros would win."""
    source = tiny.tiny_checkpoint(tmp_path / "source", vocab_size=OWN)
    tensors = load_file(source / "model.safetensors")
    common = torch.ones(tensors["lm_head.weight"].shape[1])
    tensors["lm_head.weight"] += common  # as in trained models, whose rows have much in common
    save_file(tensors, source / "model.safetensors")
    convert_to(source, tmp_path / "out", ConversionOptions(dtype="float32", pad_vocab_to=PADDED))
    head = torch.from_numpy(hf_tensors(tmp_path / "out")["lm_head.weight"]).to(dtype)
    hidden = torch.randn(20_000, head.shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
    logits = torch.cat([hidden, hidden - 3 * common.to(dtype)]) @ head.T
    largest = logits[:, :OWN].max(dim=1).values
    assert (largest < 0).float().mean() > 0.4, "the second half is as adverse as it is meant to be"
    assert (logits[:, OWN:].max(dim=1).values < largest).all()


def test_greedy_tokens_are_those_of_the_unpadded_draft(tmp_path: Path) -> None:
    source, out = padded(tmp_path)
    convert_to(source, tmp_path / "plain", ConversionOptions(dtype="float32"))
    answers = []
    for folder in (out, tmp_path / "plain"):
        engine = Engine.load(folder, max_batch_size=1, max_seq_len=64, num_threads=1)
        request = GenerationRequest("r", tuple(range(3, 19)), 24, SamplingParams(top_k=1))
        steps = engine.generate(request)
        answers.append(steps)
    assert engine.vocab_size == OWN
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "options",
    [
        {"pad_vocab_to": OWN - 1},
        {"pad_vocab_to": PADDED, "output_format": "hf", "quantization": "fp8"},
        {"pad_vocab_to": PADDED, "quantization": "nvfp4"},
    ],
    ids=str,
)
def test_what_cannot_be_padded_is_refused_before_any_output(options: dict[str, object], tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source", vocab_size=OWN)
    with pytest.raises(InputError) as caught:
        convert_to(source, tmp_path / "out", ConversionOptions(**options))  # type: ignore[arg-type]
    assert caught.value.code == "CONV-OPTION" and not (tmp_path / "out").exists()
