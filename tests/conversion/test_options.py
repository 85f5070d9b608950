"""Every option of a conversion changes what is written, or what is accepted; nonsense is refused by name."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from click.testing import CliRunner
from converted import read_ranks
from trtkit.cli.main import cli
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import InputError, TrtkitError

SIZES = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 64, "num_hidden_layers": 2}
BASE = ConversionOptions(tensor_parallel=2, kv_cache_dtype="fp8", quantization="int8_weight_only")
# option -> another value than BASE's.
OTHER: dict[str, Any] = {
    "dtype": "bfloat16",
    "tensor_parallel": 1,
    "pipeline_parallel": 2,
    "expert_parallel": 2,
    "quantization": "none",
    "kv_cache_dtype": "auto",
    "use_parallel_embedding": True,
    "embedding_sharding_dim": 1,
    "weight_only_arch": 90,
    "pad_vocab_to": 384,
}
# Options whose effect is not in the files of an ordinary conversion; tested where that effect is.
ELSEWHERE = {
    "calibration": "test_quantized_sources.py",
    "calibration_ids": "test_modelopt.py",
    "strict": "test_damaged_checkpoints.py",
    "allow_pickle": "test_foreign_sources.py",
    "output_format": "test_hf_fp8.py",
}


def written(source: Path, out: Path, options: ConversionOptions) -> dict[str, bytes]:
    convert_to(source, out, options)
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name.startswith(("rank", "config"))}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_checkpoint(tmp_path_factory.mktemp("options") / "mixtral", "mixtral", **SIZES)


def test_no_option_is_forgotten_here() -> None:
    assert OTHER.keys() | ELSEWHERE.keys() == {field.name for field in fields(ConversionOptions)}


@pytest.mark.parametrize("name", list(OTHER))
def test_every_option_changes_the_files(name: str, source: Path, tmp_path: Path) -> None:
    base = replace(BASE, use_parallel_embedding=True) if name == "embedding_sharding_dim" else BASE
    changed = replace(base, **{name: OTHER[name]})
    assert written(source, tmp_path / "base", base) != written(source, tmp_path / "other", changed)


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float8"},
        {"quantization": "fp9"},
        {"kv_cache_dtype": "fp4"},
        {"tensor_parallel": 0},
        {"pipeline_parallel": -1},
        {"tensor_parallel": 2, "expert_parallel": 3},
        {"output_format": "onnx"},
        {"weight_only_arch": 8},
        {"output_format": "hf", "quantization": "int8_smoothquant"},
        {"output_format": "hf", "quantization": "fp8", "tensor_parallel": 2},
        {"output_format": "hf", "quantization": "fp8", "use_parallel_embedding": True},
        {"quantization": "nvfp4", "kv_cache_dtype": "int8"},
    ],
    ids=str,
)
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        ConversionOptions(**changes)
    assert caught.value.code == "CONV-OPTION"


def test_weight_only_tiles_that_a_rank_cannot_have_are_refused_before_any_output(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    with pytest.raises(TrtkitError, match="multiples of 64") as caught:
        convert_to(source, tmp_path / "out", ConversionOptions(quantization="int4_weight_only"))
    assert caught.value.code == "CONV-TILES"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_text_is_refused_where_nothing_is_calibrated_on_it(quantization: str | None, tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source", tokenizer=True)
    (tmp_path / "texts.txt").write_text("at one")
    arguments = ["convert", str(source), str(tmp_path / "out"), "--calibration-text", str(tmp_path / "texts.txt")]
    result = CliRunner().invoke(cli, arguments + (["--quantization", quantization] if quantization else []))
    assert result.exit_code == 2 and "CONV-OPTION" in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_command_reports_what_it_did_as_json(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    arguments = ["convert", str(source), str(tmp_path / "out"), "--tp", "2", "--verify", "--json"]
    result = CliRunner().invoke(cli, arguments, standalone_mode=True)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["schema"] == "trtkit.conversion/1" and report["verified"]
    assert [file["name"] for file in report["files"]] == ["rank0.safetensors", "rank1.safetensors"]
    stage = report["stages"][0]
    assert (stage["stage"], stage["skipped"]) == ("convert", False)
    assert stage["bytes"] == sum(file["num_bytes"] for file in report["files"])
    assert Path(report["manifest"]).is_file()


def test_a_conversion_without_quantisation_imports_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    assert torch.__version__, "torch is installed, so that its absence below means something"
    source = tiny.tiny_checkpoint(tmp_path / "source", dtype="bfloat16")
    probe = (
        "import sys; from pathlib import Path; from trtkit.conversion.convert import convert_to;"
        "from trtkit.conversion.options import ConversionOptions;"
        f"convert_to(Path({str(source)!r}), Path({str(tmp_path / 'out')!r}), ConversionOptions(dtype='float16'));"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    assert subprocess.check_output([sys.executable, "-P", "-c", probe], text=True).strip() == "[]"


def packed(source: Path, out: Path, arch: int) -> dict[str, bytes]:
    options = ConversionOptions(quantization="int8_weight_only", weight_only_arch=arch)
    convert_to(source, out, options)
    return {name: tensor[2] for name, tensor in read_ranks(out)[0].items()}


def test_experts_are_packed_for_hopper_as_for_ampere_and_everything_is_on_later_gpus(
    source: Path, tmp_path: Path
) -> None:
    """TensorRT-LLM has no Hopper kernels for experts, and runs Ampere's on everything after Hopper."""
    ampere, ada, hopper, later = (packed(source, tmp_path / str(arch), arch) for arch in (80, 89, 90, 120))
    differing = {name.split(".", 3)[-1] for name in ampere if hopper[name] != ampere[name]}
    assert differing == {"attention.qkv.weight", "attention.dense.weight"}
    assert ampere == ada == later
