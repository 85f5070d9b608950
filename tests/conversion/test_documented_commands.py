"""The commands of docs/conversion.md do what the page says, run as printed on checkpoints of these names."""

import json
import re
import shlex
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner
from converted import read_config, read_ranks, read_tensors
from reassembly import to_float
from tiny_gguf import write_gguf
from trtkit.cli.main import cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conversion.md"
COMMANDS = re.findall(r"^(trtkit convert .*)$", PAGE.read_text(encoding="utf-8"), flags=re.M)
# What each command leaves in OUT: the files, and what config.json or hf_quant_config.json calls the precision.
WRITTEN = {
    "out/draft": (["rank0"], None),
    "out/target": (["rank0", "rank1", "rank2", "rank3"], "FP8"),
    "out/moe": (["rank0", "rank1", "rank2", "rank3"], None),
    "out/from-gguf": (["rank0"], None),
    "out/hf-fp8": (["model"], "FP8"),
    "out/hf-nvfp4": (["model"], "NVFP4"),
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with everything that the commands name, made tiny."""
    folder = tmp_path_factory.mktemp("workplace")
    tiny.tiny_checkpoint(folder / "cache" / "checkpoints" / "meta-llama--Llama-3.2-1B-Instruct")
    for name in ("Llama-3.3-70B-Instruct", "Llama-3.1-8B-Instruct"):
        tiny.tiny_checkpoint(folder / name, dtype="bfloat16", tokenizer=True, intermediate_size=128)
    tiny.tiny_checkpoint(folder / "Mixtral-8x7B", "mixtral")
    plain = tiny.tiny_checkpoint(folder / "plain")
    tensors = {name: to_float(tensor) for name, tensor in read_tensors(plain / "model.safetensors").items()}
    write_gguf(folder / "model.gguf", read_config(plain), tensors)
    names = read_tensors(folder / "Llama-3.1-8B-Instruct" / "model.safetensors")
    calibration = {
        "schema": "trtkit.calibration/1",
        "inputs": {name.removesuffix(".weight"): 4.0 for name, tensor in names.items() if len(tensor[1]) == 2},
        "kv_cache": {str(layer): {"k": 8.0, "v": 2.0} for layer in range(3)},
    }
    (folder / "calibration.json").write_text(json.dumps(calibration))
    rows = ({"token_ids": [3 + (7 * row + place) % 300 for place in range(64)]} for row in range(4))
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_command_writes_what_the_page_says(
    command: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("TRTKIT_CACHE", str(workplace / "cache"))
    arguments = shlex.split(command)[1:]
    result = CliRunner().invoke(cli, arguments, standalone_mode=True)
    assert result.exit_code == 0, result.stderr
    out = Path(arguments[2])
    files, algorithm = WRITTEN[str(out)]
    assert sorted(path.stem for path in out.glob("*.safetensors")) == files
    if "--format" in arguments:
        stated = json.loads((out / "hf_quant_config.json").read_text())["quantization"]["quant_algo"]
    else:
        stated = read_config(out)["quantization"]["quant_algo"]
        assert all(read_ranks(out))
    assert stated == algorithm


def test_every_command_is_expected_here() -> None:
    assert {shlex.split(command)[3] for command in COMMANDS} == WRITTEN.keys()
