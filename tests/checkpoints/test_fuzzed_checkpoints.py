"""Random headers, indices and configs: each is converted or refused with a code, never a traceback, never a hang."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trtkit.checkpoints.safetensors_header import read_header
from trtkit.checkpoints.stored_tensor import StoredTensor
from trtkit.conversion.options import ConversionOptions
from trtkit.conversion.plan import plan_conversion
from trtkit.errors import TrtkitError

SETTINGS = settings(
    max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
NUMBERS = st.integers(-2, 5) | st.sampled_from([2**31, 2**63, 2**64, 10**30]) | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def refused_or_planned(folder: Path) -> None:
    """Planning ends, and if with an error, then with one a user can act on."""
    try:
        plan_conversion(folder, ConversionOptions())
    except TrtkitError as error:
        assert error.code and error.fix


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny.tiny_checkpoint(tmp_path / "source", num_hidden_layers=1)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return tiny.tiny_checkpoint(tmp_path / "sharded", num_hidden_layers=1, max_shard_bytes=100_000)


@SETTINGS
@given(data=st.binary(max_size=200))
def test_any_bytes_are_no_safetensors_file_or_an_empty_one(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    try:
        assert all(tensor.num_bytes == 0 for tensor in read_header(path)) or len(data) > 60
    except TrtkitError as error:
        assert error.code and error.code.startswith("CKPT-")


@SETTINGS
@given(header=VALUES, tail=st.binary(max_size=16))
def test_any_json_header_is_refused_or_read(header: Any, tail: bytes, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + tail)
    try:
        read_header(tmp_path / "x.safetensors")
    except TrtkitError as error:
        assert error.code and error.code.startswith("CKPT-")


def tensors_behind_a_header_of(length: int, folder: Path) -> list[StoredTensor]:
    """Read a valid file of one tensor whose header is padded to `length` bytes."""
    text = json.dumps({"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode().ljust(length)
    path = folder / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + text + bytes(4))
    return read_header(path)


@SETTINGS
@given(length=st.integers(64, 1 << 17))
@example(length=int.from_bytes(b"PK\x03\x04", "little"))
def test_a_valid_file_is_read_whatever_the_length_of_its_header(length: int, tmp_path: Path) -> None:
    assert [tensor.start for tensor in tensors_behind_a_header_of(length, tmp_path)] == [8 + length]


def test_no_length_that_writers_pad_headers_to_is_taken_for_another_format(tmp_path: Path) -> None:
    """Every multiple of 8 below 64 KiB, and so every pair of first bytes that such a file can have."""
    tensors_behind_a_header_of(1 << 16, tmp_path)
    with (tmp_path / "model.safetensors").open("r+b", buffering=0) as file:
        for length in range((1 << 16) - 8, 64, -8):
            file.seek(0)
            file.write(length.to_bytes(8, "little"))
            file.truncate(8 + length + 4)
            assert len(read_header(tmp_path / "model.safetensors")) == 1, length


REPEATED = {
    "entries": lambda n: "{" + ",".join(f'"t{i}":1' for i in range(n)) + ',"t0":1}',
    "the same entry": lambda n: "{" + ",".join(['"t":1'] * n) + "}",
    "axes": lambda n: f'{{"t":{{"dtype":"F32","shape":[{",".join([str(2**63 - 1)] * n)}],"data_offsets":[0,4]}}}}',
    "offsets": lambda n: f'{{"t":{{"dtype":"F32","shape":[1],"data_offsets":[{",".join(["0"] * n)}]}}}}',
    "brackets": lambda n: "[" * n,
    "digits": lambda n: f'{{"t":{{"dtype":"F32","shape":[{"9" * n}],"data_offsets":[0,4]}}}}',
    "letters": lambda n: f'{{"{"x" * n}":1}}',
    "metadata": lambda n: f'{{"__metadata__":{{"x":"{"x" * n}"}},"t":1}}',
}


@settings(parent=SETTINGS, max_examples=20, deadline=4000)
@given(what=st.sampled_from(sorted(REPEATED)), count=st.integers(1000, 100_000))
@example(what="entries", count=100_000)
@example(what="axes", count=100_000)
def test_a_header_of_many_parts_is_refused_within_seconds_and_in_few_words(
    what: str, count: int, tmp_path: Path
) -> None:
    text = REPEATED[what](count).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(TrtkitError) as caught:
        read_header(path)
    assert caught.value.code in ("CKPT-HEADER", "CKPT-DUPLICATE")
    assert len(caught.value.cause) < 300


@SETTINGS
@given(data=st.data())
def test_a_header_with_one_value_replaced_is_refused_or_read(data: st.DataObject, source: Path) -> None:
    path = source / "model.safetensors"
    original = path.read_bytes()
    length = int.from_bytes(original[:8], "little")
    header = json.loads(original[8 : 8 + length])
    name = data.draw(st.sampled_from(sorted(header)))
    key = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "other"]))
    if name == "__metadata__":
        header[name] = data.draw(VALUES)
    else:
        header[name][key] = data.draw(VALUES)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + original[8 + length :])
    try:
        refused_or_planned(source)
    finally:
        path.write_bytes(original)


@SETTINGS
@given(data=st.data())
def test_an_index_with_random_entries_is_refused_or_read(data: st.DataObject, sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    original = path.read_text()
    document = json.loads(original)
    files = st.sampled_from(sorted(set(document["weight_map"].values()))) | st.text(max_size=12) | VALUES
    if data.draw(st.booleans()):
        document["weight_map"][data.draw(st.sampled_from(sorted(document["weight_map"])))] = data.draw(files)
    else:
        document["weight_map"] = data.draw(VALUES)
    path.write_text(json.dumps(document))
    try:
        refused_or_planned(sharded)
    finally:
        path.write_text(original)


ALSO = ("rope_scaling", "rope_parameters", "partial_rotary_factor", "attention_bias", "mlp_bias", "quantization_config")
KEYS = st.sampled_from(sorted({*ALSO, *(key for family in tiny.FAMILIES for key in tiny.tiny_config(family))}))


@SETTINGS
@given(family=st.sampled_from(tiny.FAMILIES), changes=st.dictionaries(KEYS, VALUES, max_size=3))
def test_a_config_with_random_values_is_refused_or_planned(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / family
    if not folder.exists():
        tiny.tiny_checkpoint(folder, family, num_hidden_layers=1)
        shutil.copyfile(folder / "config.json", folder / "original")
    config = json.loads((folder / "original").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    refused_or_planned(folder)


ROPE = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["default", "linear", "dynamic", "yarn", "llama3", "longrope", "su", "mrope"])},
    optional={
        "factor": VALUES,
        "low_freq_factor": VALUES,
        "high_freq_factor": VALUES,
        "original_max_position_embeddings": VALUES,
        "short_factor": VALUES,
        "long_factor": VALUES,
        "rope_theta": VALUES,
    },
)


@SETTINGS
@given(rope=ROPE, new_form=st.booleans())
def test_any_rope_section_is_refused_or_planned(rope: dict[str, Any], new_form: bool, source: Path) -> None:
    config = tiny.tiny_config("llama", num_hidden_layers=1)
    config["rope_parameters" if new_form else "rope_scaling"] = rope
    (source / "config.json").write_text(json.dumps(config))
    refused_or_planned(source)
