"""A build's record when a check asks for more: what stands in it is kept, however the new answers were asked for."""

import shutil
from pathlib import Path

import pytest
from deployed_tiny import deployed_tiny
from trtkit.builds import Build
from trtkit.evaluate.record import ParityRecord, read_record
from trtkit.evaluate.record_choice import PromptChoice, expect_of_build, record_build, record_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return deployed_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def build(made: Build) -> Build:
    shutil.rmtree(made.folder / "parity", ignore_errors=True)
    return made


@pytest.fixture
def others(tmp_path: Path) -> Path:
    path = tmp_path / "others.txt"
    path.write_text("something else\n", encoding="utf-8")
    return path


def kept(build: Build) -> ParityRecord:
    return read_record(record_path(build))


def test_shorter_answers_to_other_prompts_extend_the_record(build: Build, others: Path) -> None:
    record_build(build, PromptChoice(limit=2))
    expected = expect_of_build(build, PromptChoice(prompts=others, max_new_tokens=4))
    assert expected.max_new_tokens == 4
    assert [answer.name for answer in kept(build).answers] == ["short-one-word", "others-1"]
    assert {len(answer.token_ids) for answer in kept(build).answers} == {12}


def test_a_record_in_another_dtype_is_extended_in_it(build: Build, others: Path) -> None:
    record_build(build, PromptChoice(limit=2), dtype="bfloat16")
    expect_of_build(build, PromptChoice(prompts=others))
    assert kept(build).header.dtype == "bfloat16"
    assert [answer.name for answer in kept(build).answers] == ["short-one-word", "others-1"]


def test_longer_answers_replace_the_record(build: Build) -> None:
    record_build(build, PromptChoice(limit=1, max_new_tokens=4))
    expect_of_build(build, PromptChoice(limit=1, max_new_tokens=8))
    assert kept(build).header.max_new_tokens == 8
