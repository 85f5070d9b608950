"""nvidia-modelopt as a second witness of every layout it writes, and as the one who quantises where trtkit does not."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import conversion_matrix as matrix
import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from converted import Tensor, read_config, read_ranks, read_tensors
from reassembly import to_float
from trtkit.checkpoints.quantized import read_quantized
from trtkit.cli.main import cli
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import MODELOPT_QUANTIZATIONS, ConversionOptions
from trtkit.errors import CheckpointError, InputError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="nvidia-modelopt is not installed: pip install 'trtkit[quantize]'",
)
WITNESS = Path(__file__).resolve().parents[1] / "modelopt_witness.py"
EXPORTED = matrix.MODELOPT_FAMILIES
# modelopt 0.47 looks for each expert on its own, which transformers 5 does not keep.
EXPERTS_APART = ("mixtral", "qwen2_moe")
# modelopt 0.47 with the transformers release that is installed does not export these, whatever their quantisation.
REFUSED = ("gemma2", "gemma3", "phi3")
SIZES = {"hidden_size": 128, "intermediate_size": 256}
WIDTHS = (1, 2)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ROOT/<family> and what modelopt made of it in ROOT/<family>-tp<width>."""
    root = tmp_path_factory.mktemp("modelopt")
    triples = []
    for family in (*EXPORTED, *EXPERTS_APART, *REFUSED):
        sparse = {"mlp_only_layers": []} if family == "qwen2_moe" else {}
        tiny.tiny_checkpoint(root / family, family, "bfloat16", **SIZES, **sparse)
        for width in WIDTHS:
            triples += [str(root / family), str(root / f"{family}-tp{width}"), str(width)]
    command = [sys.executable, "-P", str(WITNESS), "bfloat16", *triples]
    subprocess.run(command, check=True, capture_output=True, timeout=500)
    return root


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("family", [*EXPORTED, *EXPERTS_APART])
def test_modelopt_writes_the_same_bytes(family: str, width: int, exports: Path, tmp_path: Path) -> None:
    """It always cuts the embedding over the ranks; GPT-2's positions too, and it leaves out Gemma's tied head."""
    if family in EXPERTS_APART and (exports / f"{family}-tp{width}" / "refused.txt").exists():
        assert int(version("transformers").split(".")[0]) >= 5
        pytest.skip("modelopt 0.47 exports this family only with transformers 4; the recorded conversions cover it")
    options = ConversionOptions(dtype="bfloat16", tensor_parallel=width, use_parallel_embedding=True)
    convert_to(exports / family, tmp_path / "out", options)
    ours = read_ranks(tmp_path / "out")
    theirs = read_ranks(exports / f"{family}-tp{width}")
    if family == "gpt2":
        theirs = _with_whole_positions(theirs)
    for own, other in zip(ours, theirs, strict=True):
        left_out = own.keys() - other.keys()
        assert left_out == ({"lm_head.weight"} if family == "gemma" else set())
        assert {name: own[name] for name in other} == other


def _with_whole_positions(ranks: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Join GPT-2's position table, which modelopt cuts by rows; the loader takes the whole one on every rank."""
    name = "transformer.position_embedding.weight"
    dtype, shape, _ = ranks[0][name]
    joined = b"".join(rank[name][2] for rank in ranks)
    return [rank | {name: (dtype, (shape[0] * len(ranks), *shape[1:]), joined)} for rank in ranks]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("family", EXPORTED)
def test_modelopt_states_the_same_model(family: str, width: int, exports: Path, tmp_path: Path) -> None:
    """Keys of config.json that both write are equal but for those that modelopt sets by its own habit."""
    options = ConversionOptions(dtype="bfloat16", tensor_parallel=width, use_parallel_embedding=True)
    convert_to(exports / family, tmp_path / "out", options)
    ours, theirs = read_config(tmp_path / "out"), read_config(exports / f"{family}-tp{width}")
    differing = {key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key]}
    # Its logits are float16 for bfloat16 models, GPT-2 has another alias there, mapping and quantization are shorter.
    habits = {
        "logits_dtype",
        "mapping",
        "quantization",
        "producer",
        "runtime_defaults",
        "disable_weight_only_quant_plugin",
    }
    habits |= {"architecture", "hidden_act", "position_embedding_type"} if family == "gpt2" else set()
    habits |= {"moe", "qwen_type", "seq_length", "attn_bias"} if family.startswith("qwen") else set()
    assert differing <= habits
    assert {key: ours["mapping"][key] for key in ("tp_size", "pp_size")} == {
        key: theirs["mapping"][key] for key in ("tp_size", "pp_size")
    }


@pytest.mark.parametrize("family", REFUSED)
def test_what_modelopt_refuses_is_known(family: str, exports: Path) -> None:
    assert "not supported" in (exports / f"{family}-tp1" / "refused.txt").read_text()


ALGORITHMS = {
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
    "int8_smoothquant": "W8A8_SQ_PER_CHANNEL",
    "nvfp4": "NVFP4",
}
IDS = tuple(tuple((7 * sample + 3 * place) % 256 for place in range(64)) for sample in range(4))
QUANTIZED_SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 512,
    "head_dim": 128,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_hidden_layers": 4,
}
CELLS = [
    pytest.param(family, layout, quantization, matrix.modelopt_cell(family, layout, quantization))
    for family in tiny.FAMILIES
    for layout in matrix.MODELOPT_LAYOUTS
    for quantization in MODELOPT_QUANTIZATIONS
]
YES = [cell for cell in CELLS if cell.values[-1] == "yes"]
REFUSED_CELLS = [cell for cell in CELLS if cell.values[-1] not in ("yes", "transformers 4")]
HF_CELLS = [
    pytest.param(family, quantization, matrix.hf_cell(family, quantization))
    for family in tiny.FAMILIES
    for quantization in matrix.HF
    if quantization != "fp8"
]


@pytest.fixture(scope="module")
def quantizable(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """One checkpoint per family, wide enough for AWQ on four ranks."""
    root = tmp_path_factory.mktemp("quantizable")

    def source(family: str) -> Path:
        folder = root / family
        own = {"gemma3": {"layer_types": None}, "qwen2_moe": {"mlp_only_layers": []}}.get(family, {})
        return folder if folder.exists() else tiny.tiny_checkpoint(folder, family, "bfloat16", **QUANTIZED_SIZES, **own)

    return source


@pytest.fixture(scope="module")
def whole(
    quantizable: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], dict[str, Tensor]]:
    """The tensors of one rank, to hold the cut ones against."""
    root = tmp_path_factory.mktemp("whole")

    def tensors(family: str, quantization: str) -> dict[str, Tensor]:
        out = root / f"{family}-{quantization}"
        convert_to(quantizable(family), out, _asked(quantization))
        return read_ranks(out)[0]

    return tensors


def _asked(quantization: str, tp: int = 1, pp: int = 1) -> ConversionOptions:
    return ConversionOptions(
        dtype="bfloat16",
        quantization=quantization,  # type: ignore[arg-type]
        tensor_parallel=tp,
        pipeline_parallel=pp,
        calibration_ids=IDS,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "layout", "quantization", "_cell"), YES)
def test_modelopt_quantises_what_trtkit_does_not(
    family: str,
    layout: tuple[int, int],
    quantization: str,
    _cell: str,
    quantizable: Callable[[str], Path],
    whole: Callable[[str, str], dict[str, Tensor]],
    tmp_path: Path,
) -> None:
    tp, pp = layout
    report = convert_to(quantizable(family), tmp_path / "out", _asked(quantization, tp, pp), verify=True)
    assert {finding.code for finding in report.findings} <= {"CONV-WINDOW"}
    assert read_config(tmp_path / "out")["quantization"]["quant_algo"] == ALGORITHMS[quantization]
    ranks = read_ranks(tmp_path / "out")
    assert len(ranks) == tp * pp
    norm = "transformer.layers.0.input_layernorm.weight"
    assert np.isfinite(to_float(ranks[0][norm])).all()
    for name in ("transformer.layers.0.mlp.fc.weight", "transformer.layers.0.mlp.proj.weight"):
        assert ranks[0][name][0] != "bfloat16"
        assert _join(name, ranks[:tp]) == whole(family, quantization)[name][2], name


def _join(name: str, ranks: list[dict[str, Tensor]]) -> bytes:
    """The ranks' parts of a matrix put together: fc is cut by outputs (rows), proj by inputs (columns)."""
    parts = [np.frombuffer(rank[name][2], np.uint8).reshape(rank[name][1][0], -1) for rank in ranks]
    return np.concatenate(parts, axis=1 if ".proj." in name else 0).tobytes()


@pytest.mark.parametrize(("family", "layout", "quantization", "cell"), REFUSED_CELLS)
def test_what_modelopt_does_not_export_is_refused_with_a_way_out(
    family: str,
    layout: tuple[int, int],
    quantization: str,
    cell: str,
    quantizable: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    with pytest.raises(CheckpointError, match="which trtkit writes itself") as caught:
        convert_to(quantizable(family), tmp_path / "out", _asked(quantization, *layout))
    assert caught.value.code == "CONV-MODELOPT"
    assert matrix.REASONS[cell][0].format(family=family) in caught.value.cause
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("quantization", ["int4_awq", "w4a8_awq", "nvfp4"])
@pytest.mark.parametrize("family", matrix.WITH_TRANSFORMERS_4)
def test_experts_are_exported_with_transformers_4_and_refused_with_5(
    family: str, quantization: str, quantizable: Callable[[str], Path], tmp_path: Path
) -> None:
    if int(version("transformers").split(".")[0]) < 5:
        convert_to(quantizable(family), tmp_path / "out", _asked(quantization, 2))
        assert read_config(tmp_path / "out")["quantization"]["quant_algo"] == ALGORITHMS[quantization]
        return
    with pytest.raises(CheckpointError, match="transformers 5 keeps them as one tensor") as caught:
        convert_to(quantizable(family), tmp_path / "out", _asked(quantization, 2))
    assert caught.value.code == "CONV-MODELOPT" and not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "quantization", "cell"), HF_CELLS)
def test_hugging_faces_format_is_quantised_too(
    family: str, quantization: str, cell: str, quantizable: Callable[[str], Path], tmp_path: Path
) -> None:
    source = quantizable(family)
    tiny.tiny_tokenizer(source)
    options = replace(_asked(quantization), output_format="hf")
    if cell != "yes":
        with pytest.raises(CheckpointError) as caught:
            convert_to(source, tmp_path / "out", options)
        assert matrix.REASONS[cell][0].format(family=family) in caught.value.cause
        return
    convert_to(source, tmp_path / "out", options, verify=True)
    quantized = read_quantized(tmp_path / "out")
    assert quantized is not None and quantized.algorithm == ALGORITHMS[quantization]
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    written, original = read_config(tmp_path / "out"), read_config(source)
    assert written.pop("quantization_config") and written == original, "no names that only a newer transformers knows"
    names = {name for name in read_tensors(tmp_path / "out" / "model.safetensors") if name.endswith(".weight")}
    assert names == {name for name in read_tensors(source / "model.safetensors") if name.endswith(".weight")}


@pytest.mark.parametrize("quantization", MODELOPT_QUANTIZATIONS)
def test_without_text_to_calibrate_on_nothing_is_quantised(
    quantization: str, quantizable: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="--calibration-text") as caught:
        convert_to(quantizable("llama"), tmp_path / "out", replace(_asked(quantization), calibration_ids=()))
    assert caught.value.code == "CONV-CALIBRATION" and not list(tmp_path.iterdir())


def test_experts_are_not_spread_by_modelopt(
    quantizable: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtkit.conversion.modelopt_limits.transformers_major", lambda: 4)
    with pytest.raises(CheckpointError, match="spreads none of them") as caught:
        convert_to(quantizable("mixtral"), tmp_path / "out", replace(_asked("nvfp4", 2), expert_parallel=2))
    assert caught.value.code == "CONV-MODELOPT" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "options", "cause"),
    [
        ({"num_hidden_layers": 3}, {"pipeline_parallel": 2}, "spreads 3 layers over 2 stages only evenly"),
        ({"intermediate_size": 192}, {"quantization": "int4_awq"}, "between 128 values, and the intermediate size"),
        ({"intermediate_size": 520}, {"quantization": "nvfp4"}, "between 16 values, and the intermediate size"),
        ({"head_dim": 64}, {"quantization": "w4a8_awq", "tensor_parallel": 4}, "width of attention per rank is 64"),
        ({"family": "gemma", "vocab_size": 321}, {"quantization": "int4_awq"}, "not gemma's tied head"),
    ],
    ids=str,
)
def test_a_model_that_its_groups_and_stages_do_not_fit_is_refused_before_anything_is_loaded(
    changes: dict[str, Any], options: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    sizes = QUANTIZED_SIZES | changes
    source = tiny.tiny_checkpoint(tmp_path / "source", sizes.pop("family", "llama"), "bfloat16", **sizes)
    with pytest.raises(CheckpointError) as caught:
        convert_to(source, tmp_path / "out", replace(_asked("int8_smoothquant"), **options))
    assert caught.value.code == "CONV-MODELOPT" and cause in caught.value.cause
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_model_larger_than_the_memory_is_refused_before_it_is_loaded(
    quantizable: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the kernel would kill the process without a word."""
    source = quantizable("llama")
    monkeypatch.setattr("trtkit.doctor.host._meminfo", lambda _: {"MemTotal": 4096, "MemAvailable": 1024})
    result = CliRunner().invoke(cli, ["convert", str(source), str(tmp_path / "out"), "--quantization", "nvfp4"])
    assert result.exit_code == 2 and "CONV-MEMORY" in result.stderr and "with little memory" in result.stderr
    assert not list(tmp_path.iterdir())
