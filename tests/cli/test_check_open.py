"""`trtkit check ENGINE --open`: what TensorRT finds in an engine, and what is said without TensorRT."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from engine_folders import write_engine
from trtkit.cli.main import cli
from trtkit.engines.inspect import EngineInfo
from trtkit.engines.runtime import RankSummary


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["check", *(str(argument) for argument in arguments)])


def opened(info: EngineInfo) -> list[RankSummary]:
    """What an engine of the fixture folder would answer."""
    tensors = {"input_ids": "INT32[-1]"}
    return [RankSummary(rank, 1 << 20, 1 << 21, {"gemm": 7}, {"FP8": 7}, tensors) for rank in range(info.world_size)]


def test_without_tensorrt_an_engine_is_checked_by_its_config_alone(tmp_path: Path) -> None:
    result = run(write_engine(tmp_path / "engine"), "--json")
    assert result.exit_code == 0, result.output
    assert "engine" not in json.loads(result.stdout)


def test_asked_to_open_without_tensorrt_it_says_what_to_install(tmp_path: Path) -> None:
    result = run(write_engine(tmp_path / "engine"), "--open")
    assert result.exit_code == 3
    assert "tensorrt is not installed" in result.stderr and "TensorRT-LLM 1.2.1" in result.stderr


@pytest.mark.parametrize("options", [[], ["--open"]])
def test_with_tensorrt_every_rank_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    monkeypatch.setattr("trtkit.cli.check.can_open", lambda: True)
    monkeypatch.setattr("trtkit.cli.check.summarise_engine", opened)
    engine = write_engine(tmp_path / "engine")
    text = run(engine, *options).stdout
    assert "rank 1" in text and "7 x gemm" in text and "7 x FP8" in text and "input_ids INT32[-1]" in text
    assert [rank["rank"] for rank in json.loads(run(engine, *options, "--json").stdout)["engine"]] == [0, 1]
    assert "rank 1" not in run(engine, "--no-open").stdout


def test_only_engines_are_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    result = run(tmp_path, "--open")
    assert result.exit_code == 2 and "CHECK-OPEN" in result.stderr


def test_a_damaged_engine_is_a_finding_in_json_too(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine", lambda document: document.pop("build_config"))
    result = run(folder, "--json")
    assert result.exit_code == 2
    assert [finding["code"] for finding in json.loads(result.stdout)["findings"]] == ["ENGINE-CONFIG"]
