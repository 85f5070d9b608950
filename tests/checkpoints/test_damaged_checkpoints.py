"""Every kind of damage a checkpoint can arrive with is named, with what to do, before any output exists."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError, MissingToolError, TrtkitError

Damage = Callable[[Path], None]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def edit_header(folder: Path, edit: Callable[[dict[str, Any]], Any], file: str = WEIGHTS) -> None:
    """Rewrite the JSON of a safetensors file; `edit` may return the text itself."""
    data = (folder / file).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    edited = edit(header)
    text = edited if isinstance(edited, bytes) else json.dumps(header).encode()
    (folder / file).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def edit_json(folder: Path, file: str, **changes: Any) -> None:
    """Change keys of a JSON file; the value ... removes a key."""
    document = json.loads((folder / file).read_text())
    for key, value in changes.items():
        document.pop(key) if value is ... else document.update({key: value})
    (folder / file).write_text(json.dumps(document))


def edit_tensors(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite the float32 weights file with other tensors."""
    config = json.loads((folder / "config.json").read_text())
    tensors = {name: tiny.tiny_tensor(name, shape) for name, shape in tiny.tensor_shapes("llama", config)}
    edit(tensors)
    tiny.write_weights(folder, tensors, "float32")


def move_offset(header: dict[str, Any], name: str, by: int) -> None:
    header[name]["data_offsets"] = [offset + by for offset in header[name]["data_offsets"]]


def lfs_pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 135\n")


def truncate(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def pickle_only(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def sharded(folder: Path) -> dict[str, Any]:
    """Turn the checkpoint into shards and return the index."""
    config = json.loads((folder / "config.json").read_text())
    tensors = {name: tiny.tiny_tensor(name, shape) for name, shape in tiny.tensor_shapes("llama", config)}
    (folder / WEIGHTS).unlink()
    tiny.write_weights(folder, tensors, "float32", shard_bytes=200_000)
    index: dict[str, Any] = json.loads((folder / INDEX).read_text())
    return index


def with_index(change: Callable[[dict[str, str], Path], Any]) -> Damage:
    def damage(folder: Path) -> None:
        index = sharded(folder)
        change(index["weight_map"], folder)
        (folder / INDEX).write_text(json.dumps(index))

    return damage


def with_header(edit: Callable[[dict[str, Any]], Any]) -> Damage:
    return lambda folder: edit_header(folder, edit)


def with_config(**changes: Any) -> Damage:
    return lambda folder: edit_json(folder, "config.json", **changes)


def with_tensors(edit: Callable[[dict[str, Any]], Any]) -> Damage:
    return lambda folder: edit_tensors(folder, edit)


FIRST = "model.embed_tokens.weight"
NORM = "model.norm.weight"
SCALING = {"factor": 2.0, "original_max_position_embeddings": 64}
DAMAGES: list[tuple[str, str, Damage]] = [
    ("a Git-LFS pointer", "CKPT-LFS", lfs_pointer),
    ("a truncated file", "CKPT-TRUNCATED", truncate),
    ("an empty file", "CKPT-TRUNCATED", lambda folder: (folder / WEIGHTS).write_bytes(b"") and None),
    (
        "a header of gigabytes",
        "CKPT-HEADER",
        lambda f: (f / WEIGHTS).write_bytes((7 << 30).to_bytes(8, "little") + b"{}") and None,
    ),
    (
        "a header longer than the file",
        "CKPT-TRUNCATED",
        lambda f: (f / WEIGHTS).write_bytes((1 << 20).to_bytes(8, "little") + b"{}") and None,
    ),
    ("a header that is no JSON", "CKPT-HEADER", with_header(lambda _: b"{'a'")),
    ("a header that is a list", "CKPT-HEADER", with_header(lambda _: b"[1, 2]")),
    ("a header nested without end", "CKPT-HEADER", with_header(lambda _: b"[" * 200_000)),
    ("a name that is there twice", "CKPT-DUPLICATE", with_header(lambda h: f'{{"{NORM}": 1, "{NORM}": 2}}'.encode())),
    ("an unknown dtype", "CKPT-DTYPE", with_header(lambda h: h[FIRST].update(dtype="F13"))),
    ("a negative size", "CKPT-HEADER", with_header(lambda h: h[FIRST].update(shape=[-1, 64]))),
    ("a size that is no integer", "CKPT-HEADER", with_header(lambda h: h[FIRST].update(shape=[320.0, 64]))),
    ("an entry without offsets", "CKPT-HEADER", with_header(lambda h: h[FIRST].pop("data_offsets") and None)),
    ("overlapping tensors", "CKPT-OFFSETS", with_header(lambda h: move_offset(h, NORM, -4))),
    ("offsets past the end", "CKPT-TRUNCATED", with_header(lambda h: move_offset(h, "lm_head.weight", 1 << 40))),
    ("a size that contradicts the offsets", "CKPT-OFFSETS", with_header(lambda h: h[FIRST].update(shape=[321, 64]))),
    (
        "bytes that belong to no tensor",
        "CKPT-OFFSETS",
        lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes() + b"xx") and None,
    ),
    (
        "a zip file in a safetensors name",
        "CKPT-HEADER",
        lambda f: (f / WEIGHTS).write_bytes(b"PK\x03\x04" + bytes(100)) and None,
    ),
    ("only a pickle", "CKPT-PICKLE", pickle_only),
    ("no weights at all", "CKPT-MISSING", lambda folder: (folder / WEIGHTS).unlink()),
    ("shards without an index", "CKPT-INDEX", lambda folder: sharded(folder) and (folder / INDEX).unlink()),
    (
        "an index that is no JSON",
        "CKPT-INDEX",
        lambda folder: sharded(folder) and (folder / INDEX).write_text("{") and None,
    ),
    (
        "an index without a map",
        "CKPT-INDEX",
        lambda folder: sharded(folder) and (folder / INDEX).write_text("{}") and None,
    ),
    (
        "an index naming a missing shard",
        "CKPT-MISSING",
        with_index(lambda m, _: m.update({NORM: "model-9.safetensors"})),
    ),
    ("an index naming a missing tensor", "CKPT-MISSING", with_index(lambda m, _: m.update(nothing=m[NORM]))),
    ("a shard outside the folder", "CKPT-PATH", with_index(lambda m, _: m.update({NORM: "../model.safetensors"}))),
    ("a shard name too long for a file", "CKPT-MISSING", with_index(lambda m, _: m.update({NORM: "x" * 300}))),
    ("a shard name with a terminal escape", "CKPT-INDEX", with_index(lambda m, _: m.update({NORM: "\x1b[31m"}))),
    ("a shard name with a NUL", "CKPT-INDEX", with_index(lambda m, _: m.update({NORM: "a\0b"}))),
    ("a tensor name with a terminal escape", "CKPT-HEADER", with_header(lambda h: h.update({"\x1b[31m": h.pop(NORM)}))),
    ("a tensor name cut within a letter", "CKPT-HEADER", with_header(lambda h: h.update({"\ud800": h.pop(NORM)}))),
    ("an absolute shard path", "CKPT-PATH", with_index(lambda m, _: m.update({NORM: "/etc/passwd"}))),
    ("a missing tensor", "CKPT-MISSING", with_tensors(lambda t: t.pop(NORM))),
    ("an untied head that is missing", "CKPT-MISSING", with_tensors(lambda t: t.pop("lm_head.weight"))),
    ("a tensor of the wrong shape", "CKPT-SHAPE", with_tensors(lambda t: t.update({NORM: np.ones(65, np.float32)}))),
    (
        "a tensor of no use",
        "CKPT-UNUSED",
        with_tensors(lambda t: t.update({"model.extra.weight": np.ones(4, np.float32)})),
    ),
    ("weights that are integers", "CKPT-DTYPE", with_header(lambda h: h[NORM].update(dtype="I32"))),
    (
        "a packed 4-bit format",
        "CKPT-QUANT",
        with_tensors(lambda t: t.update({"model.layers.0.mlp.up_proj.qweight": np.ones(4, np.float32)})),
    ),
    ("no config.json", "CKPT-CONFIG", lambda folder: (folder / "config.json").unlink()),
    ("a config that is no JSON", "CKPT-CONFIG", lambda folder: (folder / "config.json").write_text("{") and None),
    ("a config that is a list", "CKPT-CONFIG", lambda folder: (folder / "config.json").write_text("[]") and None),
    ("a size that is a string", "CKPT-CONFIG", with_config(hidden_size="64")),
    ("a missing size", "CKPT-CONFIG", with_config(num_hidden_layers=...)),
    ("more layers than weights", "CKPT-MISSING", with_config(num_hidden_layers=10**12)),
    ("an unknown architecture", "CKPT-ARCH", with_config(model_type="bert", architectures=["BertModel"])),
    ("an unknown rope kind", "CKPT-ROPE", with_config(rope_scaling={"rope_type": "spiral", **SCALING})),
    ("a rope kind without its factor", "CKPT-ROPE", with_config(rope_scaling={"rope_type": "linear"})),
    (
        "longrope factors of another length",
        "CKPT-ROPE",
        with_config(rope_scaling={"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}),
    ),
    ("a head size no kernel has", "CKPT-HEAD-SIZE", with_config(head_dim=100)),
    ("heads that cannot share key-value heads", "CKPT-HEADS", with_config(num_key_value_heads=3)),
]


@pytest.mark.parametrize(("what", "code", "damage"), DAMAGES, ids=[what for what, _, _ in DAMAGES])
def test_damage_is_named_before_any_output_exists(what: str, code: str, damage: Damage, tmp_path: Path) -> None:
    folder = tiny.tiny_checkpoint(tmp_path / "source")
    damage(folder)
    with pytest.raises(TrtkitError) as caught:
        convert_to(folder, tmp_path / "out", ConversionOptions())
    assert caught.value.code == code
    assert caught.value.exit_code == 2
    assert caught.value.cause and caught.value.fix and caught.value.where
    assert caught.value.cause.isprintable() and len(caught.value.cause) < 300
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("tensor_parallel", [3, 8])
def test_an_impossible_tensor_parallel_lists_the_possible_ones(tensor_parallel: int, tmp_path: Path) -> None:
    folder = tiny.tiny_checkpoint(tmp_path / "source")
    with pytest.raises(CheckpointError, match="use one of 1, 2, 4") as caught:
        convert_to(folder, tmp_path / "out", ConversionOptions(tensor_parallel=tensor_parallel))
    assert caught.value.code == "CKPT-HEADS"


def test_more_stages_than_layers_are_refused(tmp_path: Path) -> None:
    folder = tiny.tiny_checkpoint(tmp_path / "source")
    with pytest.raises(CheckpointError, match="use at most 3"):
        convert_to(folder, tmp_path / "out", ConversionOptions(pipeline_parallel=4))


def test_a_linked_shard_as_in_the_hubs_cache_is_fine(tmp_path: Path) -> None:
    folder = tiny.tiny_checkpoint(tmp_path / "source")
    blob = tmp_path / "blob"
    (folder / WEIGHTS).rename(blob)
    (folder / WEIGHTS).symlink_to(blob)
    assert convert_to(folder, tmp_path / "out", ConversionOptions()).files


def test_a_disk_that_is_too_small_is_known_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    folder = tiny.tiny_checkpoint(tmp_path / "source")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(MissingToolError, match="GB free") as caught:
        convert_to(folder, tmp_path / "out", ConversionOptions())
    assert caught.value.code == "DISK-SPACE"
    assert not (tmp_path / "out").exists()


def test_a_source_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    folder = tiny.tiny_checkpoint(tmp_path / "source")

    def touch(_: object) -> None:
        (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())

    with pytest.raises(CheckpointError, match="changed while") as caught:
        convert_to(folder, tmp_path / "out", ConversionOptions(), touch)
    assert caught.value.code == "CKPT-CHANGED"
    assert not (tmp_path / "out").exists()


def test_a_source_that_shrinks_meanwhile_is_an_error_and_no_crash(tmp_path: Path) -> None:
    folder = tiny.tiny_checkpoint(tmp_path / "source")

    def shrink(_: object) -> None:
        with (folder / WEIGHTS).open("r+b") as file:
            file.truncate(5000)

    with pytest.raises(CheckpointError) as caught:
        convert_to(folder, tmp_path / "out", ConversionOptions(), shrink)
    assert caught.value.code == "CKPT-CHANGED"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_warned_of_by_name_and_refused_when_strict(
    value: float, dtype: str, tmp_path: Path
) -> None:
    folder = tiny.tiny_checkpoint(tmp_path / "source", dtype=dtype)
    config = json.loads((folder / "config.json").read_text())
    tensors = {name: tiny.tiny_tensor(name, shape) for name, shape in tiny.tensor_shapes("llama", config)}
    tensors["model.layers.1.mlp.up_proj.weight"][5, 7] = value
    tiny.write_weights(folder, tensors, dtype)
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight") as caught:
        convert_to(folder, tmp_path / "out", ConversionOptions(strict=True))
    assert caught.value.code == "CKPT-NAN"
    assert [path.name for path in tmp_path.iterdir()] == ["source"], "nothing is left behind"
    report = convert_to(folder, tmp_path / "out", ConversionOptions())
    assert [(f.code, f.where.rsplit(":", 1)[1]) for f in report.findings] == [
        ("CKPT-NAN", "model.layers.1.mlp.up_proj.weight")
    ]


def test_values_too_large_for_float16_are_warned_of(tmp_path: Path) -> None:
    folder = tiny.tiny_checkpoint(tmp_path / "source")
    edit_tensors(folder, lambda tensors: tensors[NORM].__setitem__(0, 1e6))
    report = convert_to(folder, tmp_path / "out", ConversionOptions(dtype="float16"))
    assert [f.code for f in report.findings] == ["CONV-OVERFLOW"]
