"""Parameters of a model: typed, with the build directory in front of relative paths."""

import json
from pathlib import Path

import pytest
from trtkit.errors import InputError
from trtkit.serving.arguments import ModelArguments, read_arguments


def arguments(tmp_path: Path, **parameters: str) -> ModelArguments:
    config = {"parameters": {key: {"string_value": value} for key, value in parameters.items()}}
    folder = tmp_path / "model_repository" / "m"
    return read_arguments(
        {"model_name": "m", "model_repository": str(folder), "model_config": json.dumps(config), "model_version": "1"}
    )


def test_a_relative_path_is_meant_from_the_build_directory(tmp_path: Path) -> None:
    assert arguments(tmp_path, tokenizer_dir="tokenizer").path("tokenizer_dir") == tmp_path / "tokenizer"


def test_an_absolute_path_stays(tmp_path: Path) -> None:
    assert arguments(tmp_path, tokenizer_dir="/somewhere").path("tokenizer_dir") == Path("/somewhere")


@pytest.mark.parametrize("value", ["", "${engine_dir}"])
def test_a_missing_parameter_and_a_leftover_placeholder_are_the_same(tmp_path: Path, value: str) -> None:
    given = arguments(tmp_path, **({"k": value} if value else {}))
    assert given.parameter("k", "default") == "default"
    with pytest.raises(InputError, match=r"m/config\.pbtxt: parameter k is missing"):
        given.parameter("k")


def test_numbers_flags_and_lists_are_read_strictly(tmp_path: Path) -> None:
    given = arguments(tmp_path, n="12", f="True", l="1,2", bad="maybe")
    assert (given.number("n"), given.flag("f", default=False), given.numbers("l"), given.numbers("none")) == (
        12,
        True,
        (1, 2),
        (),
    )
    with pytest.raises(InputError, match="bad must be true or false, got 'maybe'"):
        given.flag("bad", default=True)
    with pytest.raises(InputError, match="bad must be a number"):
        given.number("bad")
