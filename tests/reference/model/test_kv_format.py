"""Which format a cache gets: the checkpoint's, the asked one, and the scales of both."""

import json
from pathlib import Path

import pytest
import torch
from tiny_trtllm import edit_checkpoint, edit_tensors, tiny_model, write_checkpoint
from trtkit.errors import CheckpointError, InputError
from trtkit.reference.kv_cache.formats import Format, Fp8, Int4, Int8
from trtkit.reference.kv_cache.options import KvDtype
from trtkit.reference.model.config import read_config
from trtkit.reference.model.kv_format import kv_format
from trtkit.reference.model.load import WeightLoader


def checkpoint(folder: Path, algorithm: str | None, **scales: float) -> Path:
    write_checkpoint(tiny_model(head_dim=32), folder)
    quantization = json.loads((folder / "config.json").read_text())["quantization"]
    edit_checkpoint(folder, quantization={**quantization, "kv_cache_quant_algo": algorithm})
    for layer in range(3):
        stem = f"transformer__layers__{layer}__attention__"
        edit_tensors(folder, **{f"{stem}{name}": torch.tensor([value]) for name, value in scales.items()})
    return folder


def format_of(folder: Path, asked: KvDtype = "auto") -> Format | None:
    config = read_config(folder)
    return kv_format(asked, config, WeightLoader(folder, config, torch.device("cpu")).load(64))


def largest(codec: Format | None) -> list[float]:
    """The largest key and value that survive."""
    assert codec is not None
    huge = torch.full((1, 2 * 2 * 32), 1e9)
    back: list[float] = codec.decode(1, codec.encode(1, huge))[0, :, 0, 0].tolist()
    return back


def test_a_plain_checkpoint_has_a_plain_cache(tmp_path: Path) -> None:
    assert format_of(checkpoint(tmp_path, None)) is None


def test_auto_is_what_the_checkpoint_was_converted_for(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "fp8", "FP8", kv_cache_scaling_factor=0.5, kv_cache_rcp_scaling_factor=2.0)
    assert isinstance(format_of(folder), Fp8)
    assert largest(format_of(folder)) == [224, 224]
    folder = checkpoint(tmp_path / "int8", "INT8", kv_cache_scaling_factor=0.5)
    assert isinstance(format_of(folder), Int8)
    assert largest(format_of(folder)) == [63.5, 63.5]


def test_keys_and_values_may_have_scales_of_their_own(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "FP8", k_cache_scaling_factor=1.0, v_cache_scaling_factor=0.25)
    assert largest(format_of(folder)) == [448, 112]


def test_the_models_own_dtype_may_be_asked_for_all_the_same(tmp_path: Path) -> None:
    assert format_of(checkpoint(tmp_path, "FP8", kv_cache_scaling_factor=0.5), "float") is None


def test_fp8_without_scales_has_the_scale_one(tmp_path: Path) -> None:
    assert largest(format_of(checkpoint(tmp_path, None), "fp8")) == [448, 448]


def test_scales_of_one_format_say_how_large_numbers_get_in_the_other(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "FP8", kv_cache_scaling_factor=0.5)
    assert largest(format_of(folder, "int8")) == pytest.approx([224, 224])


def test_int8_without_scales_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs scales") as caught:
        format_of(checkpoint(tmp_path, None), "int8")
    assert caught.value.code == "KV-SCALES"


def test_int4_needs_no_scales_but_whole_groups(tmp_path: Path) -> None:
    assert isinstance(format_of(checkpoint(tmp_path / "fits", None), "int4"), Int4)
    odd = write_checkpoint(tiny_model(head_dim=40), tmp_path / "odd")
    with pytest.raises(InputError, match="head_dim 40") as caught:
        format_of(odd, "int4")
    assert caught.value.code == "KV-HEAD"


def test_another_format_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="KV cache quantization NVFP4"):
        format_of(checkpoint(tmp_path, "NVFP4"))
