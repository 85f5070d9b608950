"""config.pbtxt as protobuf: what Triton would refuse is refused here, with the line."""

from pathlib import Path

import pytest
from trtkit.errors import InputError
from trtkit.repository.pbtxt import ModelConfig, parse_pbtxt, read_config, to_pbtxt
from trtkit.serving.tensor import ModelContract, optional, required, scalars


def small() -> ModelConfig:
    contract = ModelContract("small", tuple(scalars("INT32", "n")), tuple(required("STRING", "text", -1)))
    return ModelConfig(contract, max_batch_size=2, decoupled=True, parameters={"b": "2", "a": "é"})


def test_the_text_reads_back_as_the_same_message() -> None:
    message = parse_pbtxt(to_pbtxt(small()), where="small")
    assert (message.name, message.max_batch_size, message.backend) == ("small", 2, "python")
    assert message.model_transaction_policy.decoupled
    assert message.input[0].HasField("reshape")
    assert list(message.input[0].reshape.shape) == []
    assert {key: value.string_value for key, value in message.parameters.items()} == {"a": "é", "b": "2"}


def test_the_order_of_parameters_does_not_change_the_text() -> None:
    config = small()
    swapped = ModelConfig(config.contract, 2, decoupled=True, parameters={"a": "é", "b": "2"})
    assert to_pbtxt(config) == to_pbtxt(swapped)


def test_optional_inputs_say_so() -> None:
    contract = ModelContract("m", tuple(optional("FP32", "x", -1)), ())
    assert parse_pbtxt(to_pbtxt(ModelConfig(contract, 1)), where="m").input[0].optional


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ('name: "m"\ndata_type: ${logits_datatype}', "PBTXT-PLACEHOLDER", "m/config.pbtxt:2"),
        ('name: "m"\nno_such_field: 1', "PBTXT-PARSE", "2:1"),
        ("max_batch_size: many", "PBTXT-PARSE", "1:17"),
        ('name: "a"\nname: "b"', "PBTXT-PARSE", "2"),
    ],
)
def test_a_broken_config_is_refused_with_its_line(tmp_path: Path, text: str, code: str, where: str) -> None:
    path = tmp_path / "m" / "config.pbtxt"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_config(path)
    assert error.value.code == code
    assert where in str(error.value)


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"PBTXT-FILE: .*config\.pbtxt: cannot read it"):
        read_config(tmp_path / "config.pbtxt")


@pytest.mark.parametrize(
    ("line", "is_left"),
    [
        ("# backend: ${triton_backend}", False),
        ('backend: "python"  # was ${triton_backend}', False),
        ('backend: "${triton_backend}"  # a comment', True),
        ('backend: "a # ${triton_backend}"', True),
        ("backend: 'it # ${triton_backend}'", True),
        (r'backend: "\" # ${triton_backend}"', True),
    ],
)
def test_a_placeholder_in_a_comment_is_none(line: str, is_left: bool) -> None:
    text = f'name: "m"\n{line}\n'
    if not is_left:
        assert parse_pbtxt(text, where="m").name == "m"
        return
    with pytest.raises(InputError) as caught:
        parse_pbtxt(text, where="m")
    assert (caught.value.code, caught.value.where) == ("PBTXT-PLACEHOLDER", "m:2")
