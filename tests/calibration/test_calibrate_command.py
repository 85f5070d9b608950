"""`trtkit calibrate`: the table, --json, the files, the build that uses them, and its errors."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibrated import random_samples
from click.testing import CliRunner, Result
from converted import read_ranks, read_tensors
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint
from trtkit.calibration.jobs import Choices
from trtkit.cli.main import cli
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions

WIDE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A target and a draft, a user's texts, an FP8 cache."""
    for role, layers in (("target", 3), ("draft", 1)):
        tiny_checkpoint(tmp_path / role, dtype="bfloat16", tokenizer=True, num_hidden_layers=layers, **WIDE)
    rows = [{"token_ids": sample.token_ids} for sample in random_samples({f"t{n}": 40 for n in range(9)})]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "pair.yaml"
    path.write_text(
        "name: pair\nbackend: engine\ngpu: {name: h100-sxm-80gb}\n"
        f"target: {{checkpoint: {tmp_path / 'target'}, quantization: fp8}}\n"
        f"draft: {{checkpoint: {tmp_path / 'draft'}, quantization: fp8}}\n"
        "speculation: {kind: draft_target, max_draft_len: 2}\nkv_cache: {dtype: fp8}\n"
        "limits: {max_input_len: 64, max_output_len: 32}\n"
        f"calibration: {{prompts: {tmp_path / 'texts.jsonl'}}}\n"
    )
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["calibrate", *map(str, arguments)])


def test_the_table_and_the_files(config: Path, tmp_path: Path) -> None:
    result = run(config, "--out", tmp_path / "out", "--price")
    assert result.exit_code == 0, result.output
    assert "KV scale" in result.stdout and "fp8-unit" in result.stdout
    assert "warning: CALIB-FEW: only 320 tokens" in result.stdout
    names = {path.name for path in (tmp_path / "out" / "draft").iterdir()}
    assert names == {"calibration.json", "report.json", "outliers.png", "price.png", "measured"}


def test_what_looks_like_markup_is_shown_as_it_is(config: Path, tmp_path: Path) -> None:
    """A folder's name may hold brackets, which the table's library takes for colours, or for an error."""
    (tmp_path / "target").rename(tmp_path / "a[-b]c [red]d")
    config.write_text(config.read_text().replace(f"{tmp_path / 'target'}", f"'{tmp_path}/a[-b]c [red]d'"))
    result = run(config, "--out", tmp_path / "out[bold]", "--only", "target")
    assert result.exit_code == 0, result.output
    text = result.stdout.replace("\n", "")
    assert "a[-b]c [red]d" in text and "out[bold]" in text


def test_json_holds_every_model(config: Path, tmp_path: Path) -> None:
    document = json.loads(run(config, "--out", tmp_path / "out", "--json").stdout)
    assert document["schema"] == "trtkit.calibrate/1"
    assert set(document["models"]) == {"target", "draft"}
    target = document["models"]["target"]
    assert (target["measured"]["num_samples"], target["measured"]["num_tokens"]) == (8, 320)
    assert len(target["layers"]) == 3
    assert target["kv_cache"]["advice"] in ("fp8", "keep")
    written = json.loads((tmp_path / "out" / "target" / "report.json").read_text())
    assert written == target | {"out": "."}


def test_the_following_conversion_uses_it(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    layers = json.loads(run(config, "--json").stdout)["models"]["target"]["layers"]
    built = CliRunner().invoke(cli, ["build", str(config), "--only", "convert", "--json"])
    assert built.exit_code == 0, built.output
    tensors = read_ranks(tmp_path / "build" / "pair" / "checkpoints" / "target")[0]
    for layer in layers:
        scale = tensors[f"transformer.layers.{layer['layer']}.attention.kv_cache_scaling_factor"][2]
        assert np.frombuffer(scale, np.float32)[0] == pytest.approx(layer["kv_scale"], rel=1e-6)


def test_an_unquantised_build_for_the_llm_api_gets_a_checkpoint_with_the_measured_scales(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = config.read_text().replace("backend: engine", "backend: llmapi").replace(", quantization: fp8", "")
    config.write_text(text.replace("kv_cache: {dtype: fp8}", "kv_cache: {dtype: fp8, reuse: false}"))
    assert not (tmp_path / "build").exists()
    plain = CliRunner().invoke(cli, ["build", str(config)])
    assert plain.exit_code == 0, plain.output
    assert not (tmp_path / "build" / "pair" / "checkpoints").exists(), "nothing to convert without scales"
    layers = json.loads(run(config, "--json").stdout)["models"]["target"]["layers"]
    built = CliRunner().invoke(cli, ["build", str(config)])
    assert built.exit_code == 0, built.output
    folder = tmp_path / "build" / "pair" / "checkpoints" / "target"
    quantization = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    assert (quantization["quant_algo"], quantization["kv_cache_quant_algo"]) == (None, "FP8")
    tensors = read_tensors(folder / "model.safetensors")
    for layer in layers:
        for name in "kv":
            scale = tensors[f"model.layers.{layer['layer']}.self_attn.{name}_proj.{name}_scale"][2]
            assert np.frombuffer(scale, np.float32)[0] == pytest.approx(layer["kv_scale"], rel=1e-6)
    repository = tmp_path / "build" / "pair" / "model_repository"
    assert any("checkpoints/target" in path.read_text() for path in repository.rglob("*.yaml"))


def test_modelopt_quantizes_and_its_scales_are_held_against_ours(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("--out", out, "--only", "target", "--method", "amax")
    result = run(config, *asked, "--modelopt", "--json")
    assert result.exit_code == 0, result.output
    written = Path(json.loads(result.stdout)["models"]["target"]["modelopt"])
    assert json.loads((written / "config.json").read_text())["quantization"]["kv_cache_quant_algo"] == "FP8"
    result = run(config, *asked, "--compare", written, "--json")
    comparison = json.loads(result.stdout)["models"]["target"]["comparison"]
    assert comparison["verdict"] == "calibrated"
    assert [row["factor"] for row in comparison["layers"]] == pytest.approx([1.0] * 3, rel=1e-6)
    assert "calibrated" in run(config, *asked, "--compare", written).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--only", "draft", "--modelopt", "--set", "draft.quantization=none"],
            "CALIB-MODELOPT: draft.quantization is none",
        ),
        (["--percentile", "0"], "CALIB-OPTION"),
        (["--percentile", "99.9"], "CALIB-OPTION: --percentile 99.9 says nothing to --method power-of-two"),
        (["--set", "calibration.prompts=none.jsonl"], "CALIB-TEXT: none.jsonl"),
        (["--set", "calibration.samples=1", "--set", "calibration.max_len=9"], "CALIB-TINY"),
        (["--only", "target", "--compare", "."], "TRT-CONFIG"),
    ],
)
def test_mistakes_exit_with_2(config: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run(config, "--out", tmp_path / "out", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Fix: " in result.stderr
    assert not list(tmp_path.glob("out/*/*")), "refused before the pass"


def test_what_the_draft_refuses_is_refused_before_the_target_is_measured(config: Path, tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "draft", dtype="bfloat16", tokenizer=True, num_hidden_layers=1, vocab_size=200, **WIDE)
    result = run(config, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "CALIB-TOKENIZER" in result.stderr and "the vocabulary is 0 to 199" in result.stderr
    assert not (tmp_path / "out").exists()


def test_every_choice_of_the_command_line_is_an_option() -> None:
    command = cli.get_command(None, "calibrate")  # type: ignore[arg-type]
    assert command is not None
    options = {parameter.name for parameter in command.params} - {"config", "overrides", "as_json"}
    assert options == set(Choices.__dataclass_fields__)


def test_a_device_that_is_not_there_is_refused_before_any_work(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    absent, unknown = run(config, "--device", "cuda"), run(config, "--device", "toaster")
    assert (absent.exit_code, unknown.exit_code) == (3, 2), (absent.output, unknown.output)
    assert "GPU-MISSING: torch finds no GPU here" in absent.stderr
    assert "CALIB-OPTION: --device toaster is neither cpu nor cuda" in unknown.stderr


def keys_of(value: object) -> set[str]:
    """Every key of a JSON document, but those that are data."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys_of(inner) for key, inner in value.items() if key != "errors"))


def test_the_report_has_the_keys_that_its_page_says(config: Path, tmp_path: Path) -> None:
    tensors = load_file(tmp_path / "target" / "model.safetensors")
    tensors["model.layers.0.self_attn.v_proj.weight"][3] *= 50
    save_file(tensors, tmp_path / "target" / "model.safetensors", {"format": "pt"})
    asked = ("--out", tmp_path / "out", "--only", "target")
    assert run(config, *asked).exit_code == 0
    file = tmp_path / "out" / "target" / "calibration.json"
    options = ConversionOptions(dtype="bfloat16", kv_cache_dtype="fp8", calibration=file)
    convert_to(tmp_path / "target", tmp_path / "trt", options)
    assert run(config, *asked, "--price", "--compare", tmp_path / "trt").exit_code == 0
    report = json.loads((tmp_path / "out" / "target" / "report.json").read_text())
    page = (Path(__file__).parents[2] / "docs" / "calibration.md").read_text()
    rows = page.partition("## The report\n")[2].partition("\n## ")[0].partition("|---|---|\n")[2]
    said = set(re.findall("`([a-z_]+)`", rows)) - {"keep", "k", "v"}
    assert keys_of(report) == said
    assert {"fp8/tensor", "fp8/token", "fp8/channel", "fp8/smooth"} <= set(report["layers"][0]["tensors"][0]["errors"])
    assert report["schema"] in rows and run(config, *asked, "--json").stdout.split('"')[3] in page


@pytest.mark.parametrize(("option", "part"), [("--modelopt", "quantize_with_modelopt"), ("--price", "measure_prices")])
def test_a_calibration_that_is_interrupted_later_leaves_its_scales_and_their_report(
    option: str, part: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--out", tmp_path / "out", "--only", "target")
    assert run(config, *asked, "--price").exit_code == 0

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"trtkit.calibration.run.{part}", interrupted)
    assert run(config, *asked, "--method", "amax", option).exit_code != 0
    folder = tmp_path / "out" / "target"
    report, scales = (json.loads((folder / f"{name}.json").read_text()) for name in ("report", "calibration"))
    assert report["measured"]["method"] == scales["method"]["name"] == "amax"
    assert not report["prices"] and not (folder / "price.png").exists(), "those were of other scales"
