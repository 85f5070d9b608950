"""The streaming pass: what it measures against a whole model that is listened to, interruptions, NaN."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calibrated import SAMPLES, random_samples, run_pass, whole_model
from safetensors.torch import load_file, save_file
from tiny import FAMILIES, tiny_checkpoint
from torch import Tensor
from transformers.pytorch_utils import Conv1D
from trtkit.calibration.collect import PassOptions, collect
from trtkit.calibration.records import LayerRecord, read_layer_record
from trtkit.calibration.samples import Sample
from trtkit.errors import CheckpointError, InputError
from trtkit.progress import Progress


@contextmanager
def listening(model: Any, heard: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Hear the input of every linear module of a whole model."""
    modules = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear | Conv1D)}
    handles = [m.register_forward_pre_hook(lambda _, args, name=n: heard(name, args[0])) for n, m in modules.items()]
    yield
    for handle in handles:
        handle.remove()


def cache_of(out: Any) -> Any:
    """The cache of a model's output; transformers 5 renamed it."""
    return out["cache"] if "cache" in out else out["past_key_values"]


def whole_model_amax(folder: Path, samples: list[Sample]) -> dict[str, np.ndarray[Any, Any]]:
    """Channel maxima of linear inputs and of the cache, from transformers with all weights loaded."""
    model = whole_model(folder)
    found: dict[str, np.ndarray[Any, Any]] = {}

    def heard(name: str, x: Tensor) -> None:
        amax = x.reshape(-1, x.shape[-1]).abs().amax(0).numpy()
        found[name] = np.maximum(found.get(name, amax), amax)

    with listening(model, heard), torch.inference_mode():
        for sample in samples:
            out = model(input_ids=torch.tensor([sample.token_ids]), use_cache=True)
            cache = cache_of(out)
            for number, layer in enumerate(cache.layers):
                heard(f"{number}/k", layer.keys[0].transpose(0, 1).flatten(1))
                heard(f"{number}/v", layer.values[0].transpose(0, 1).flatten(1))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_measures_what_a_whole_model_shows(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", family)
    expected = whole_model_amax(folder, SAMPLES)
    for record in run_pass(folder, tmp_path / "pass"):
        compared = {name: heard for name, heard in record.modules.items() if name in expected}
        assert compared or "experts" in str(record.modules), "no linear layer was compared"
        for name, heard in compared.items():
            amax = record.tensors[heard].channel_amax
            np.testing.assert_allclose(amax, expected[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_measures_the_keys_and_values_of_its_cache(family: str, tmp_path: Path) -> None:
    # Shorter than the tiny models' window of 16, because a whole model's cache forgets what left the window.
    short = random_samples({"first": 15, "second": 11})
    folder = tiny_checkpoint(tmp_path / "hf", family)
    expected = whole_model_amax(folder, short)
    for number, record in enumerate(run_pass(folder, tmp_path / "pass", samples=short)):
        for name in ("k", "v"):
            np.testing.assert_allclose(record.tensors[name].channel_amax, expected[f"{number}/{name}"], rtol=1e-5)


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe"])
def test_experts_are_measured_one_by_one(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", family)
    record = run_pass(folder, tmp_path / "pass")[0]
    experts = {name: record.tensors[heard] for name, heard in record.modules.items() if ".experts." in name}
    block = "block_sparse_moe" if family == "mixtral" else "mlp"
    assert f"model.layers.0.{block}.experts.0.{'w1' if family == 'mixtral' else 'gate_proj'}" in experts
    tokens = sum(len(sample.token_ids) for sample in SAMPLES)
    gates = [tensor for name, tensor in experts.items() if name.endswith(("w1", "gate_proj"))]
    assert sum(tensor.num_tokens for tensor in gates) == 2 * tokens, "each token goes to two experts"
    assert {len(tensor.channel_counts) for tensor in experts.values()} == {0}, "there may be hundreds of experts"


def test_layers_that_share_an_input_share_its_record(tmp_path: Path) -> None:
    record = run_pass(tiny_checkpoint(tmp_path / "hf"), tmp_path / "pass")[1]
    prefix = "model.layers.1."
    q, k, v = (record.modules[f"{prefix}self_attn.{name}_proj"] for name in "qkv")
    assert q == k == v
    assert record.modules[f"{prefix}mlp.gate_proj"] == record.modules[f"{prefix}mlp.up_proj"] != q


def test_counts_cover_every_number(tmp_path: Path) -> None:
    record = run_pass(tiny_checkpoint(tmp_path / "hf"), tmp_path / "pass")[0]
    tokens = sum(len(sample.token_ids) for sample in SAMPLES)
    for tensor in record.tensors.values():
        assert tensor.num_tokens == tokens
        assert tensor.counts.sum() == tokens * tensor.channel_amax.size
        np.testing.assert_array_equal(tensor.channel_counts.sum(1), tokens)


def test_percentiles_are_those_of_the_numbers(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    record = run_pass(folder, tmp_path / "pass")[0]
    model = whole_model(folder)
    with torch.inference_mode():
        outs = [model(input_ids=torch.tensor([s.token_ids]), use_cache=True) for s in SAMPLES]
    values = torch.cat([cache_of(out).layers[0].values[0] for out in outs], dim=1)  # [H, T, D]
    magnitudes = values.abs().flatten().double().numpy()
    assert record.values.histogram.percentile(99) == pytest.approx(
        np.percentile(magnitudes, 99, method="inverted_cdf"), rel=2**-7
    )
    per_channel = values.abs().permute(0, 2, 1).flatten(0, 1).double().numpy()
    exact = np.percentile(per_channel, 50, axis=1, method="inverted_cdf")
    assert np.all(record.values.channel_percentile(50) >= exact)
    assert np.all(record.values.channel_percentile(50) <= exact * 1.126), "bins are an eighth of an octave"
    heads = np.percentile(values.abs().flatten(1).numpy(), 50, axis=1, method="inverted_cdf")
    np.testing.assert_allclose(record.values.head_percentile(50), heads, rtol=0.126)


def test_two_passes_leave_the_same_records(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", "qwen2", "bfloat16")
    first = run_pass(folder, tmp_path / "a", dtype="bfloat16")
    assert_equal(first, run_pass(folder, tmp_path / "b", dtype="bfloat16"))


@pytest.mark.parametrize("stop_after", [1, 2])
def test_an_interrupted_pass_goes_on_and_measures_the_same(tmp_path: Path, stop_after: int) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    whole = run_pass(folder, tmp_path / "whole")

    def stop(event: Progress) -> None:
        if event.done == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_pass(folder, tmp_path / "pass", on_progress=stop)
    kept = tmp_path / "pass" / "layers" / "0000.npz"
    written = kept.stat().st_mtime_ns
    assert_equal(whole, run_pass(folder, tmp_path / "pass"))
    assert kept.stat().st_mtime_ns == written, "the finished layer ran again"
    assert not list((tmp_path / "pass").glob("state-*"))


@pytest.mark.parametrize("size", [0, 1000])
def test_a_torn_state_of_an_interrupted_pass_is_made_again(tmp_path: Path, size: int) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    whole = run_pass(folder, tmp_path / "whole")

    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_pass(folder, tmp_path / "pass", on_progress=stop)
    (state,) = (tmp_path / "pass").glob("state-*")
    state.write_bytes(state.read_bytes()[:size])
    assert_equal(whole, run_pass(folder, tmp_path / "pass"))


def test_nan_names_layer_tensor_and_text(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    poison(folder, "model.layers.1.mlp.up_proj.weight")
    with pytest.raises(InputError, match=r"layer 1: NaN or Inf in the input of mlp.down_proj while the text 'first'"):
        collect(folder, SAMPLES, made(tmp_path / "pass"), PassOptions("float32"))


def test_overflow_in_float16_is_reported_with_the_way_out(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    scale(folder, "model.layers.2.self_attn.v_proj.weight", 1e6)
    with pytest.raises(InputError, match="CALIB-NONFINITE: layer 2: NaN or Inf in the values") as caught:
        collect(folder, SAMPLES, made(tmp_path / "pass"), PassOptions("float16"))
    assert "--dtype float32" in caught.value.fix


def test_a_single_token_is_a_sample_too(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    collect(folder, [Sample("one", (5,)), *SAMPLES], made(tmp_path / "pass"), PassOptions("float32"))
    assert read_layer_record(tmp_path / "pass" / "layers" / "0000.npz").keys.num_tokens == 1 + 64


@pytest.mark.parametrize("per_row", [False, True])
def test_weights_in_fp8_are_multiplied_out(per_row: bool, tmp_path: Path) -> None:
    """The same numbers as a checkpoint that holds the products: without their scales they would be hundreds of times
    too large.
    """
    plain, stored = tiny_checkpoint(tmp_path / "plain"), tiny_checkpoint(tmp_path / "stored")
    products, codes = load_file(plain / "model.safetensors"), {}
    for name, weight in products.items():
        if not name.endswith(("proj.weight", "embed_tokens.weight")):
            codes[name] = weight
            continue
        scale = weight.abs().amax(1, keepdim=True) / 448 if per_row else weight.abs().max().view(1) / 448
        codes[name] = (weight / scale).to(torch.float8_e4m3fn)
        codes[f"{name}_scale"] = scale
        products[name] = codes[name].float() * scale
    save_file(products, plain / "model.safetensors", {"format": "pt"})
    save_file(codes, stored / "model.safetensors", {"format": "pt"})
    assert_equal(run_pass(plain, tmp_path / "a"), run_pass(stored, tmp_path / "b"))


def test_scales_that_are_not_one_for_each_row_are_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name], tensors[f"{name}_scale"] = tensors[name].to(torch.float8_e4m3fn), torch.ones(5)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"CKPT-SCALE.*up_proj.weight has 96 rows and 5 scales"):
        run_pass(folder, tmp_path / "pass")


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def poison(folder: Path, name: str) -> None:
    scale(folder, name, float("nan"))


def scale(folder: Path, name: str, factor: float) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = tensors[name] * factor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def assert_equal(first: list[LayerRecord], second: list[LayerRecord]) -> None:
    assert len(first) == len(second) == 3
    for a, b in zip(first, second, strict=True):
        assert a.modules == b.modules
        for name in a.tensors:
            for field in ("channel_amax", "channel_mean", "channel_mean_abs", "counts", "channel_counts"):
                np.testing.assert_array_equal(getattr(a.tensors[name], field), getattr(b.tensors[name], field))
