"""nvidia-modelopt as a second witness of every layout it writes, and as the one who quantises where trtkit does not."""

import importlib.util
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import conversion_matrix as matrix
import numpy as np
import pytest
import tiny
from converted import Tensor, read_config, read_ranks
from reassembly import to_float
from trtkit.conversion.convert import convert_to
from trtkit.conversion.modelopt_export import CONFIGURATIONS
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError

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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("quantization", list(CONFIGURATIONS))
@pytest.mark.parametrize("family", matrix.MODELOPT_FAMILIES)
def test_modelopt_quantises_what_trtkit_does_not(family: str, quantization: str, tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source", family, "bfloat16", **SIZES, vocab_size=256)
    options = ConversionOptions(dtype="bfloat16", quantization=quantization)  # type: ignore[arg-type]
    report = convert_to(source, tmp_path / "out", options, verify=True)
    assert [finding.code for finding in report.findings] == ["CONV-SYNTHETIC-CALIBRATION"]
    assert read_config(tmp_path / "out")["quantization"]["quant_algo"] == ALGORITHMS[quantization]
    rank = read_ranks(tmp_path / "out")[0]
    norm = "transformer.layers.0.input_layernorm.weight"
    assert np.isfinite(to_float(rank[norm])).all()
    assert rank["transformer.layers.0.mlp.proj.weight"][0] != "bfloat16"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["phi3", "qwen3_moe"])
def test_a_family_that_modelopt_does_not_export_is_refused_with_a_way_out(family: str, tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source", family, "bfloat16", **SIZES)
    with pytest.raises(CheckpointError, match="which trtkit writes itself") as caught:
        convert_to(source, tmp_path / "out", ConversionOptions(quantization="int8_smoothquant"))
    assert caught.value.code == "CONV-MODELOPT"
    assert not (tmp_path / "out").exists()
