"""The stage `calibrate`: runs where a conversion lacks scales, once, resumable, and nowhere else."""

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny import VOCAB_SIZE, tiny_checkpoint
from trtkit.config.load import load_config
from trtkit.conversion.calibration import read_calibration
from trtkit.errors import BuildError, InputError
from trtkit.pipeline.dry_run import dry_run
from trtkit.pipeline.manifest import StageResult
from trtkit.pipeline.run import BuildOptions, build, prepare
from trtkit.pipeline.stages import conversion_options, plan_stages
from trtkit.progress import silent

FP8 = ("target.quantization=fp8", "draft.quantization=fp8")
WITH_SCALES = ["calibrate target", "calibrate draft", "convert target", "convert draft"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    tiny_checkpoint(folder / "target", tokenizer=True)
    tiny_checkpoint(folder / "draft", tokenizer=True, num_hidden_layers=1)
    return folder


def write_texts(path: Path, seed: int = 0) -> Path:
    """A file of calibration texts given as token ids."""
    source = random.Random(seed)
    texts = [{"token_ids": [source.randrange(3, VOCAB_SIZE) for _ in range(48)]} for _ in range(4)]
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))
    return path


@pytest.fixture
def config_file(pair: Path, tmp_path: Path) -> Path:
    document = {
        "name": "tiny",
        "backend": "engine",
        "gpu": {"name": "h100-sxm-80gb", "count": 2},
        "target": {"checkpoint": str(pair / "target"), "dtype": "bfloat16"},
        "draft": {"checkpoint": str(pair / "draft"), "dtype": "bfloat16"},
        "speculation": {"kind": "draft_target", "max_draft_len": 2},
        "limits": {"max_batch_size": 2, "max_input_len": 64, "max_output_len": 32},
        "calibration": {"samples": 4, "max_len": 48, "prompts": str(write_texts(tmp_path / "texts.jsonl"))},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def options(config_file: Path, **choices: object) -> BuildOptions:
    folder = config_file.parent
    return BuildOptions(cache=folder / "cache", where="tiny.yaml", out=folder / "build", **choices)  # type: ignore[arg-type]


def run(config_file: Path, *overrides: str, only: str) -> list[StageResult]:
    """What became of the stages of one kind."""
    report = build(load_config(config_file, overrides), options(config_file, only=only))
    return [stage for stage in report.stages if stage.stage != "check"]


def run_both(config_file: Path, *overrides: str) -> list[StageResult]:
    """Calibration, then conversion, as a whole build runs them before it needs a GPU."""
    return [stage for only in ("calibrate", "convert") for stage in run(config_file, *overrides, only=only)]


def done(stages: list[StageResult]) -> list[str]:
    return [stage.stage for stage in stages if not stage.skipped]


def scales_of(config_file: Path, role: str) -> Path:
    return config_file.parent / "build" / "scales" / role / "calibration.json"


def test_fp8_weights_are_calibrated_before_they_are_converted(config_file: Path) -> None:
    assert done(run_both(config_file, *FP8)) == WITH_SCALES
    measured = read_calibration(scales_of(config_file, "target"))
    assert len(measured.kv_cache) == 3 and all(limit > 0 for limit in measured.inputs.values())
    config = json.loads((config_file.parent / "build" / "checkpoints" / "target" / "config.json").read_text())
    assert config["quantization"]["quant_algo"] == "FP8"


def test_scales_are_measured_once(config_file: Path) -> None:
    run_both(config_file, *FP8)
    assert done(run_both(config_file, *FP8)) == []


def test_other_texts_are_measured_again_and_what_needs_no_scales_is_left_alone(config_file: Path) -> None:
    run_both(config_file, *FP8[:1])
    write_texts(config_file.parent / "texts.jsonl", seed=1)
    assert done(run_both(config_file, *FP8[:1])) == ["calibrate target", "convert target"]


def test_every_setting_of_the_calibration_decides(config_file: Path) -> None:
    run(config_file, *FP8, only="calibrate")
    for change in ("samples=3", "max_len=40", "seed=5", "prompts=null"):
        planned = dry_run(load_config(config_file, [*FP8, f"calibration.{change}"]), options(config_file))
        assert not planned[0].skipped and planned[0].stage == "calibrate target", change


@pytest.mark.parametrize(
    "override", ["target.quantization=none", "target.quantization=fp8_rowwise", "backend=reference"]
)
def test_nothing_is_measured_where_nothing_needs_it(config_file: Path, override: str) -> None:
    planned = dry_run(load_config(config_file, [override]), options(config_file))
    assert not [stage.stage for stage in planned if stage.stage.startswith("calibrate")]


def test_a_checkpoint_that_is_quantised_already_keeps_its_own_scales(config_file: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(load_config(config_file).target.checkpoint, tmp_path / "own"))
    (own / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    planned = dry_run(load_config(config_file, [*FP8, f"target.checkpoint={own}"]), options(config_file))
    assert [stage.stage for stage in planned if stage.stage.startswith("calibrate")] == ["calibrate draft"]


def test_a_calibration_by_hand_is_used_instead(config_file: Path) -> None:
    run_both(config_file, *FP8)
    for role in ("target", "draft"):
        by_hand = config_file.parent / "build" / "calibration" / role / "calibration.json"
        by_hand.parent.mkdir(parents=True)
        by_hand.write_text(scales_of(config_file, role).read_text() + "\n")
    assert [stage.stage for stage in run_both(config_file, *FP8)] == ["convert target", "convert draft"]


def test_a_dry_run_names_the_stage_and_its_files(config_file: Path) -> None:
    planned = dry_run(load_config(config_file, FP8), options(config_file))[:4]
    assert [stage.stage for stage in planned] == WITH_SCALES
    run_both(config_file, *FP8)
    for stage in planned:
        written = {path.relative_to(stage.out).as_posix() for path in stage.out.rglob("*") if path.is_file()}
        assert written - {".trtkit-stage.json"} == set(stage.files), stage.stage


def test_a_conversion_alone_takes_no_scales_of_other_settings(config_file: Path) -> None:
    with pytest.raises(BuildError, match="not measured yet") as error:
        run(config_file, *FP8, only="convert")
    assert error.value.code == "STAGE-ORDER"
    run(config_file, *FP8, only="calibrate")
    with pytest.raises(BuildError, match="not measured yet"):
        run(config_file, *FP8, "calibration.samples=3", only="convert")
    assert done(run(config_file, *FP8, only="convert")) == ["convert target", "convert draft"]


PROGRAM = """
import os, signal, sys
from pathlib import Path
from trtkit.config.load import load_config
from trtkit.pipeline.run import BuildOptions, build, prepare
from trtkit.pipeline.stages import conversion_options, plan_stages
from trtkit.progress import silent
config, out = Path(sys.argv[1]), Path(sys.argv[2])
def kill(event):
    if event.stage == "calibrate target" and event.unit != "stages" and event.done == 1:
        os.kill(os.getpid(), signal.SIGKILL)
build(load_config(config, sys.argv[3:]), BuildOptions(cache=out.parent, where="t", out=out, only="calibrate"), kill)
"""


def test_a_build_killed_while_it_measures_ends_with_the_same_scales(config_file: Path) -> None:
    out = config_file.parent / "build"
    command = [sys.executable, "-P", "-c", PROGRAM, str(config_file), str(out), *FP8]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not scales_of(config_file, "target").exists()
    run(config_file, *FP8, only="calibrate")
    after_kill = scales_of(config_file, "target").read_text()
    shutil.rmtree(out)
    run(config_file, *FP8, only="calibrate")
    assert scales_of(config_file, "target").read_text() == after_kill


NVFP4 = ("gpu.name=b200", "draft=null", "speculation={kind: none}", "target.quantization=nvfp4")


def wide_target(folder: Path) -> Path:
    return tiny_checkpoint(folder, dtype="bfloat16", tokenizer=True, intermediate_size=128)


def test_what_modelopt_quantises_is_calibrated_on_the_texts_of_the_yaml(config_file: Path, tmp_path: Path) -> None:
    target = f"target.checkpoint={wide_target(tmp_path / 'wide')}"
    assert done(run(config_file, *NVFP4, target, only="convert")) == ["convert target"]
    rank = tmp_path / "build" / "checkpoints" / "target" / "rank0.safetensors"
    before = rank.read_bytes()
    assert done(run(config_file, *NVFP4, target, only="convert")) == []
    write_texts(tmp_path / "texts.jsonl", seed=1)
    assert done(run(config_file, *NVFP4, target, only="convert")) == ["convert target"]
    assert rank.read_bytes() != before, "other texts give other activation scales"
    for change in ("samples=3", "max_len=40", "seed=5", "prompts=null"):
        planned = dry_run(load_config(config_file, [*NVFP4, target, f"calibration.{change}"]), options(config_file))
        assert not planned[0].skipped and planned[0].stage == "convert target", change


def test_texts_that_are_too_short_for_modelopt_are_an_error_and_no_guess(config_file: Path, tmp_path: Path) -> None:
    target = f"target.checkpoint={wide_target(tmp_path / 'wide')}"
    (tmp_path / "texts.jsonl").write_text('{"token_ids": [3, 4, 5]}\n')
    with pytest.raises(InputError) as error:
        run(config_file, *NVFP4, target, only="convert")
    assert error.value.code == "CALIB-TINY"


@pytest.mark.parametrize(("gpu", "arch"), [("h100-sxm-80gb", 90), ("l4", 89)])
def test_integer_weights_are_packed_for_the_gpu_of_the_yaml(
    gpu: str, arch: int, config_file: Path, tmp_path: Path
) -> None:
    source = tiny_checkpoint(tmp_path / "tiles", tokenizer=True, intermediate_size=128)
    asked = (f"target.checkpoint={source}", "target.quantization=int8_weight_only")
    keys = []
    for name, expected in ((gpu, arch), ("a100-sxm-80gb", 80)):
        config = load_config(config_file, [*asked, f"gpu.name={name}"])
        request, _ = prepare(config, options(config_file), silent)
        assert conversion_options(config.target, config, request.sm).weight_only_arch == expected
        keys.append({stage.name: stage.key for stage in plan_stages(request)}["convert target"])
    assert keys[0] != keys[1]
