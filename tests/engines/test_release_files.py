"""A release file states what differs from another one: a new version is a new file, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
from trtkit.engines.release_files import read_releases

OLD = {"version": "1.0", "images": ["a", "b"], "build": {"flags": {"x": {"default": 1}, "y": {"default": None}}}}


def versions(folder: Path, *documents: dict[str, Any]) -> dict[str, dict[str, Any]]:
    for document in documents:
        (folder / f"{document['version']}.json").write_text(json.dumps(document))
    return {values["version"]: values for values in read_releases(folder)}


def test_a_file_that_says_nothing_is_like_the_one_it_extends(tmp_path: Path) -> None:
    found = versions(tmp_path, OLD, {"version": "1.1", "extends": "1.0"})
    assert found["1.1"] == OLD | {"version": "1.1"}


def test_objects_are_merged_and_everything_else_is_replaced(tmp_path: Path) -> None:
    new = {"version": "1.1", "extends": "1.0", "images": ["c"], "build": {"flags": {"x": {"default": 2}, "z": {}}}}
    found = versions(tmp_path, OLD, new)
    assert found["1.1"]["images"] == ["c"]
    assert found["1.1"]["build"]["flags"] == {"x": {"default": 2}, "y": {"default": None}, "z": {}}
    assert found["1.0"] == OLD, "the older release is untouched"


def test_a_null_is_a_value_and_removal_is_said_in_words(tmp_path: Path) -> None:
    new = {"version": "1.1", "extends": "1.0", "images": None, "remove": ["build.flags.y"]}
    found = versions(tmp_path, OLD, new)
    assert found["1.1"]["images"] is None
    assert found["1.1"]["build"]["flags"].keys() == {"x"}


def test_removing_what_is_not_there_is_a_mistake_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        versions(tmp_path, OLD, {"version": "1.1", "extends": "1.0", "remove": ["build.flags.gone"]})


def test_versions_with_the_same_values_share_a_file(tmp_path: Path) -> None:
    found = versions(tmp_path, OLD | {"same_as": ["0.9", "0.8"]})
    assert found.keys() == {"1.0", "0.9", "0.8"}
    assert found["0.9"] == OLD | {"version": "0.9"}


def test_chains_are_followed(tmp_path: Path) -> None:
    middle = {"version": "1.1", "extends": "1.0", "images": ["c"]}
    found = versions(tmp_path, {"version": "1.2", "extends": "1.1"}, middle, OLD)
    assert found["1.2"]["images"] == ["c"] and found["1.2"]["build"] == OLD["build"]
