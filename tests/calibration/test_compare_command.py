"""`trtkit check A --against B`: the KV scales of two converted checkpoints, layer by layer."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from calibrated import random_samples
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint
from trtkit.calibration.calibration_file import ScaleOptions
from trtkit.calibration.run import CalibrationOptions, calibrate
from trtkit.calibration.scales import ScaleMethod
from trtkit.calibration.texts import CalibrationText
from trtkit.cli.main import cli
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import InputError
from trtkit.progress import Progress


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same checkpoint converted with calibrated scales, and with the 1.0 of a conversion without calibration."""
    folder = tmp_path_factory.mktemp("pair")
    source = tiny_checkpoint(folder / "hf", dtype="bfloat16")
    samples = random_samples({f"t{n}": 40 for n in range(9)})
    texts = [CalibrationText(sample.name, token_ids=sample.token_ids) for sample in samples]
    calibrate(source, folder / "calibration", CalibrationOptions("float32"), texts)
    file = folder / "calibration" / "calibration.json"
    convert_to(source, folder / "own", ConversionOptions(kv_cache_dtype="fp8", calibration=file))
    convert_to(source, folder / "unit", ConversionOptions(kv_cache_dtype="fp8"))
    return folder / "own", folder / "unit"


def check(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["check", *map(str, arguments)])


def test_two_checkpoints_are_held_against_each_other(pair: tuple[Path, Path]) -> None:
    own, unit = pair
    document = json.loads(check(own, "--against", unit, "--json").stdout)
    comparison = document["comparison"]
    assert comparison["verdict"] == "constant"
    assert [row["layer"] for row in comparison["layers"]] == [0, 1, 2]
    for row in comparison["layers"]:
        assert row["there"] == 1.0
        assert row["factor"] == pytest.approx(1 / row["here"])
        assert 0 < row["here"] < 0.1


def test_two_checkpoints_without_scales_have_no_table(tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "hf", dtype="bfloat16")
    convert_to(source, tmp_path / "trt", ConversionOptions())
    result = check(tmp_path / "trt", "--against", tmp_path / "trt")
    assert result.exit_code == 0
    assert result.stdout.replace("\n", "").rstrip().endswith(f"KV scales of {tmp_path / 'trt'}: absent")
    assert "there" not in result.stdout


def test_the_table_stands_below_the_findings(pair: tuple[Path, Path]) -> None:
    own, unit = pair
    result = check(unit, "--against", own)
    assert f"KV scales of {own}: calibrated" in result.stdout.replace("\n", "")
    assert "there / here" in result.stdout


@pytest.mark.parametrize("form", ["converted", "hugging face"])
def test_a_checkpoint_to_compare_with_is_read_once_before_the_pass(
    form: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """What a build writes there meanwhile is another checkpoint, and none when it is halfway."""
    folder = tmp_path / "own"
    if form == "converted":
        shutil.copytree(pair[0], folder)
    else:
        hugging_face(folder, {0: 0.0156, 1: 0.0156, 2: 0.0156})
    options = CalibrationOptions("float32", scales=ScaleOptions(ScaleMethod("amax")), compare=folder)
    samples = random_samples({f"t{n}": 40 for n in range(9)})
    texts = [CalibrationText(sample.name, token_ids=sample.token_ids) for sample in samples]

    def remove(_: Progress) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    report = calibrate(pair[0].parent / "hf", tmp_path / "out", options, texts, remove)
    assert report.comparison is not None and not folder.exists()
    assert [difference.layer for difference in report.comparison.differences] == [0, 1, 2]
    assert all(1 <= (difference.factor or 0) < 2 for difference in report.comparison.differences)


def hugging_face(folder: Path, scales: dict[int, float], algorithm: str | None = "FP8") -> Path:
    """A checkpoint with the scales that nvidia-modelopt exports for Hugging Face."""
    tiny_checkpoint(folder, dtype="bfloat16", tokenizer=True)
    tensors = load_file(folder / "model.safetensors")
    for layer, scale in scales.items():
        for name, share in (("k", 1.0), ("v", 0.25)):
            tensors[f"model.layers.{layer}.self_attn.{name}_proj.{name}_scale"] = torch.tensor([scale * share])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    quantization = {"quant_algo": None, "kv_cache_quant_algo": algorithm}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    return folder


def test_checkpoints_of_hugging_face_are_compared_too(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one = hugging_face(tmp_path / "one", {0: 0.1, 1: 0.2, 2: 0.4})
    two = hugging_face(tmp_path / "two", {0: 0.1, 1: 0.1})
    comparison = json.loads(check(one, "--against", two, "--json").stdout)["comparison"]
    assert comparison["verdict"] == "incomplete"
    assert [row["factor"] for row in comparison["layers"]] == [1.0, 0.5, None]
    comparison = json.loads(check(pair[1], "--against", one, "--json").stdout)["comparison"]
    assert [row["there"] for row in comparison["layers"]] == pytest.approx([0.1, 0.2, 0.4])
    (two / "model.safetensors").write_bytes(b"torn")
    torn = check(one, "--against", two)
    assert torn.exit_code == 2 and "CKPT-" in torn.stderr and str(two) in torn.stderr
    other = check(one, "--against", hugging_face(tmp_path / "int8", {0: 0.1}, "INT8"))
    assert other.exit_code == 2 and "CALIB-FORMAT" in other.stderr


def test_something_else_than_a_checkpoint_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = check(pair[0], "--against", tmp_path)
    assert result.exit_code == 2
    assert "TRT-CONFIG" in result.stderr


def test_scales_of_two_formats_are_not_held_against_each_other(pair: tuple[Path, Path], tmp_path: Path) -> None:
    own, _ = pair
    folder = own.parent
    samples = random_samples({f"t{n}": 40 for n in range(9)})
    texts = [CalibrationText(sample.name, token_ids=sample.token_ids) for sample in samples]
    options = CalibrationOptions("float32", scales=ScaleOptions(ScaleMethod("amax"), "int8"))
    file = calibrate(folder / "hf", tmp_path / "calibration", options, texts).out / "calibration.json"
    convert_to(folder / "hf", tmp_path / "int8", ConversionOptions(kv_cache_dtype="int8", calibration=file))
    result = check(own, "--against", tmp_path / "int8")
    assert result.exit_code == 2
    assert "CALIB-FORMAT" in result.stderr and "an INT8 KV cache, and the scales here are for FP8" in result.stderr
    with pytest.raises(InputError, match="CALIB-FORMAT"):
        calibrate(folder / "hf", tmp_path / "calibration", replace(options, compare=own), texts)
