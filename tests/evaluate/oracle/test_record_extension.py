"""A build's record when a check asks for more: what stands in it is kept, however the new answers were asked for."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deployed_tiny import deployed_tiny
from trtkit.builds import Build
from trtkit.errors import InputError
from trtkit.evaluate.endpoints.deployment import Target
from trtkit.evaluate.oracle.numerics import GivenFormats, formats_of
from trtkit.evaluate.oracle.record import ParityRecord, read_record, write_record
from trtkit.evaluate.oracle.record_choice import (
    PromptChoice,
    expect_of_build,
    expect_of_file,
    record_build,
    record_path,
)
from trtkit.evaluate.parity.run import CheckOptions, check_parity


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


def test_a_record_of_another_checkpoint_is_refused(build: Build, tmp_path: Path) -> None:
    record = record_build(build, PromptChoice(limit=1))
    write_record(tmp_path / "other.json", replace(record, header=replace(record.header, digest="other")))
    with pytest.raises(InputError, match="the record is about another checkpoint"):
        expect_of_file(tmp_path / "other.json", PromptChoice(limit=1), build)


def test_a_record_that_was_made_for_other_formats_is_made_for_the_builds(build: Build) -> None:
    record = record_build(build, PromptChoice(limit=1))
    write_record(record_path(build), replace(record, formats=replace(record.formats, kv_dtype="int8")))
    expect_of_build(build, PromptChoice(limit=1))
    assert kept(build).formats == record.formats == formats_of(build)


def test_a_record_is_read_once_however_it_is_extended(
    build: Build, others: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_build(build, PromptChoice(limit=1))
    read: list[Path] = []
    read_text = Path.read_text

    def watched(path: Path, *arguments: Any, **named: Any) -> str:
        read.append(path)
        return read_text(path, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", watched)
    expect_of_build(build, PromptChoice(limit=1))
    expect_of_build(build, PromptChoice(prompts=others, max_new_tokens=4))
    assert read.count(record_path(build)) == 2


def test_a_damaged_record_stops_a_check_and_is_replaced_by_a_recording(build: Build) -> None:
    record_path(build).parent.mkdir()
    record_path(build).write_text("{")
    with pytest.raises(InputError, match="not a parity record"):
        expect_of_build(build, PromptChoice(limit=1))
    record_build(build, PromptChoice(limit=1))
    assert [answer.name for answer in kept(build).answers] == ["short-one-word"]


def test_prompts_that_were_all_left_out_are_said_so(build: Build) -> None:
    record_build(build, PromptChoice(limit=2))
    with pytest.raises(InputError, match="chat-tea: chat-tea is a chat"):
        expect_of_build(build, PromptChoice(group="chat", limit=1))


def test_a_limit_counts_the_answers_of_a_record_that_is_given(build: Build, others: Path) -> None:
    record_build(build, PromptChoice(prompts=others))
    record_build(build, PromptChoice(limit=1))
    expected = expect_of_file(record_path(build), PromptChoice(limit=1), None)
    assert [answer.name for answer in expected.answers] == ["others-1"]


def test_a_format_given_beside_a_build_is_refused(build: Build) -> None:
    options = CheckOptions(PromptChoice(limit=1), formats=GivenFormats(kv_dtype="fp8"), in_process=True)
    with pytest.raises(InputError, match="leave --kv-dtype out"):
        check_parity(Target(str(build.folder), build), options)


def test_longer_answers_replace_the_record(build: Build) -> None:
    record_build(build, PromptChoice(limit=1, max_new_tokens=4))
    expect_of_build(build, PromptChoice(limit=1, max_new_tokens=8))
    assert kept(build).header.max_new_tokens == 8
