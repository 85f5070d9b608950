"""Damaged TensorRT-LLM checkpoints: whatever config.json holds, `trtkit check` ends, and says what is wrong."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import tiny_checkpoint, write_json
from trtkit.checking.scales import audit_scales
from trtkit.checkpoints.safetensors_header import read_header
from trtkit.cli.main import cli
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions

MOE_KEYS = (
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "decoder_sparse_step",
    "mlp_only_layers",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages of two ranks, with scales of an FP8 cache."""
    folder = tmp_path_factory.mktemp("whole")
    limits = {str(layer): {"k": 20.0 + layer, "v": 5.0} for layer in range(3)}
    write_json(folder / "calibration.json", {"schema": "trtkit.calibration/1", "inputs": {}, "kv_cache": limits})
    options = ConversionOptions(
        dtype="float16",
        kv_cache_dtype="fp8",
        calibration=folder / "calibration.json",
        tensor_parallel=2,
        pipeline_parallel=2,
    )
    convert_to(tiny_checkpoint(folder / "hf", "mixtral"), folder / "out", options)
    return folder / "out"


def check(*arguments: object) -> Result:
    """The command's result; anything but an exit is a traceback and raised here."""
    result = CliRunner().invoke(cli, ["check", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def found(folder: Path, *arguments: object) -> dict[str, str]:
    """Code -> cause."""
    document = json.loads(check(folder, "--json", *arguments).stdout)
    return {finding["code"]: f"{finding['where']}: {finding['cause']}" for finding in document["findings"]}


def changed(whole: Path, folder: Path, keys: tuple[str, ...], value: Any) -> Path:
    """A copy with one value of config.json replaced."""
    out = folder / "changed"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(whole, out)
    document = json.loads((out / "config.json").read_text())
    section = document
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    (out / "config.json").write_text(json.dumps(document))
    return out


def test_the_whole_one_has_no_fault(whole: Path) -> None:
    assert set(found(whole)) == {"SCALE-CALIBRATED"}


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("num_hidden_layers", "abc", "num_hidden_layers should be"),
        ("num_hidden_layers", 10**9, "announces 1000000000 layers, and the rank files hold"),
        ("num_hidden_layers", 2.5, "num_hidden_layers should be"),
        ("num_attention_heads", 0, "num_attention_heads should be"),
        ("hidden_size", [64], "hidden_size should be"),
        ("architecture", 5, "architecture should be"),
        ("vocab_size", "x", "vocab_size should be"),
        ("mapping", [1], "mapping should be an object"),
        ("mapping.tp_size", 0, "tp_size should be"),
        ("mapping.tp_size", "x", "tp_size should be"),
        ("mapping.tp_size", 4, "world_size should be 8"),
        ("mapping", {"pp_size": 10**9, "world_size": 10**9}, "pp_size 1000000000 is more stages than the 3 layers"),
        ("mapping.world_size", 3, "world_size should be 4"),
        ("mapping.moe_ep_size", 3, "moe_ep_size 3 does not divide tp_size 2"),
        ("quantization", [1], "quantization should be an object"),
        ("quantization", "FP8", "quantization should be an object"),
        ("quantization.kv_cache_quant_algo", {}, "kv_cache_quant_algo should be"),
        ("quantization.quant_algo", "\ud800", "quant_algo should be"),
        ("moe", 1, "moe should be an object"),
        ("moe.num_experts", -4, "num_experts should be"),
        ("use_parallel_embedding", "yes", "use_parallel_embedding should be"),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_is_one_finding_that_names_it(
    key: str, value: Any, named: str, whole: Path, tmp_path: Path
) -> None:
    ((code, cause),) = found(changed(whole, tmp_path, tuple(key.split(".")), value)).items()
    assert code == "TRT-CONFIG" and "config.json" in cause and named in cause


@pytest.mark.parametrize("unset", [0, -1, None])
def test_an_expert_parallel_size_left_unset_is_one(unset: Any, whole: Path, tmp_path: Path) -> None:
    assert set(found(changed(whole, tmp_path, ("mapping", "moe_ep_size"), unset))) == {"SCALE-CALIBRATED"}


def test_thousands_of_missing_ranks_are_told_in_a_line(whole: Path, tmp_path: Path) -> None:
    mapping = {"tp_size": 10**10, "world_size": 10**10}
    cause = found(changed(whole, tmp_path, ("mapping",), mapping))["TRT-RANKS"]
    assert "announces 10000000000 ranks" in cause and len(cause) < 300


@pytest.mark.parametrize("name", ["rank0x", "rank\u0662", "rank00", "rank" + "9" * 99])
def test_a_file_that_is_no_rank_is_not_read(name: str, whole: Path, tmp_path: Path) -> None:
    folder = changed(whole, tmp_path, ("dtype",), "float16")
    (folder / f"{name}.safetensors").write_bytes(b"x" * 20)
    assert set(found(folder)) == {"SCALE-CALIBRATED"}


def test_a_deeply_nested_config_is_one_finding(whole: Path, tmp_path: Path) -> None:
    folder = changed(whole, tmp_path, ("dtype",), "float16")
    (folder / "config.json").write_text("[" * 100_000)
    assert set(found(folder)) == {"TRT-CONFIG"}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from([10**9, 10**30, 1 << 40, "\ud800\x1b[31m", "FP8", "LlamaForCausalLM", "GPT2LMHeadModel"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_config_ends_in_a_traceback(data: st.DataObject, whole: Path, tmp_path: Path) -> None:
    document = json.loads((whole / "config.json").read_text())
    document |= dict.fromkeys(MOE_KEYS)
    paths = [(key,) for key in document]
    paths += [(key, inner) for key in ("mapping", "quantization", "moe") for inner in document[key]]
    folder = changed(whole, tmp_path, data.draw(st.sampled_from(paths)), data.draw(_VALUES))
    assert check(folder).exit_code in (0, 2)
    assert check(whole, "--against", folder).exit_code in (0, 2)


def with_scale(folder: Path, layer: int, value: float) -> None:
    """Write `value` over every scale of a layer of the first stage."""
    path = folder / "rank0.safetensors"
    data = bytearray(path.read_bytes())
    for tensor in read_header(path):
        if f".{layer}." in tensor.name and tensor.name.endswith("cache_scaling_factor"):
            data[tensor.start : tensor.stop] = struct.pack("<f", value)
    path.write_bytes(data)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_compared_with_nothing(value: float, whole: Path, tmp_path: Path) -> None:
    folder = changed(whole, tmp_path, ("dtype",), "float16")
    with_scale(folder, 0, value)
    for one, other in ((folder, whole), (whole, folder)):
        assert check(one, "--against", other).exit_code in (0, 2)
        text = check(one, "--against", other, "--json").stdout
        document = json.loads(text, parse_constant=pytest.fail)
        assert [row["factor"] for row in document["comparison"]["layers"]] == [None, 1.0, 1.0]
    assert "layer 0 has the KV scale" in found(folder)["SCALE-INVALID"]


def test_the_invalid_one_of_a_layers_scales_is_shown(whole: Path, tmp_path: Path) -> None:
    folder = changed(whole, tmp_path, ("dtype",), "float16")
    path = folder / "rank0.safetensors"
    data = bytearray(path.read_bytes())
    (tensor,) = [t for t in read_header(path) if t.name == "transformer.layers.1.attention.v_cache_scaling_factor"]
    data[tensor.start : tensor.stop] = struct.pack("<f", -2.0)
    path.write_bytes(data)
    assert "layer 1 has the KV scale -2.0 (1 such layers)" in found(folder)["SCALE-INVALID"]


def test_a_layer_counts_once_however_many_scales_it_has() -> None:
    assert audit_scales({0: [1.0, 1.0, 1.0], 1: [1.5, 1.5, 1.0], 2: [2.0, 2.0, 1.5]}, 3).num_ones == 2
