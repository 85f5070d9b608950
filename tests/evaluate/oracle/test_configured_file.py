"""Files of a build's YAML: found where the command runs, or said to be elsewhere."""

from pathlib import Path
from typing import Any

import pytest
from trtkit.builds import Build
from trtkit.config.load import parse_config
from trtkit.errors import InputError
from trtkit.evaluate.bench.run import BenchOptions, bench_deployment
from trtkit.evaluate.endpoints.deployment import Target
from trtkit.evaluate.oracle.configured_file import configured_file
from trtkit.evaluate.oracle.record_choice import PromptChoice


def build(**verification: Any) -> Build:
    document = {"name": "b", "backend": "reference", "target": {"checkpoint": "t"}, "verification": verification}
    return Build(Path("b"), {"versions": {}}, parse_config(document, where="b.yaml"))


def test_a_file_is_looked_for_where_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("Once\n")
    assert configured_file(build(prompts="mine.txt"), "prompts") == Path("mine.txt")
    assert [prompt.text for prompt in PromptChoice().read(build(prompts="mine.txt"))] == ["Once"]
    assert configured_file(build(), "prompts") is configured_file(None, "baseline") is None


def test_elsewhere_the_message_says_whose_file_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=rf"verification.prompts of the build names mine.txt, which is not in {tmp_path}"
    ):
        PromptChoice().read(build(prompts="mine.txt"))
    with pytest.raises(InputError, match="give another file with --baseline"):
        bench_deployment(Target("b", build(baseline="base.json")), BenchOptions(PromptChoice()))


def test_a_file_given_instead_is_taken(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("Twice\n")
    assert [prompt.text for prompt in PromptChoice(tmp_path / "other.txt").read(build(prompts="gone.txt"))] == ["Twice"]


def test_a_baseline_that_is_made_need_not_be_there() -> None:
    assert configured_file(build(baseline="base.json"), "baseline", is_made=True) == Path("base.json")
