"""A source that changes at any moment after its headers were read is an error, and no mixture of two checkpoints."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from trtkit.conversion import convert
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError
from trtkit.progress import Progress


def calibration(path: Path, layers: int = 3) -> Path:
    """A file with the KV scales of every layer."""
    caches = {str(layer): {"k": 2.0, "v": 1.0} for layer in range(layers)}
    path.write_text(json.dumps({"schema": "trtkit.calibration/1", "inputs": {}, "kv_cache": caches}))
    return path


def reversed_layout(path: Path) -> None:
    """Put a file with the same tensors, in the other order, in the place of `path`: as long, with other offsets."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    entries, parts, offset = {}, [], 0
    for name in reversed([name for name in header if name != "__metadata__"]):
        start, stop = header[name]["data_offsets"]
        parts.append(body[start:stop])
        entries[name] = header[name] | {"data_offsets": [offset, offset + stop - start]}
        offset += stop - start
    text = json.dumps(entries, separators=(",", ":")).encode().ljust(length)
    assert len(text) == length
    beside = path.with_suffix(".new")
    beside.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
    beside.replace(path)


def other_config(source: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5}))


CHANGES: dict[str, Callable[[Path], None]] = {
    "model.safetensors": lambda source: reversed_layout(source / "model.safetensors"),
    "config.json": other_config,
    "draft_vocabulary.json": lambda source: (source / "draft_vocabulary.json").write_text("{}") and None,
    "model.safetensors.index.json": lambda source: (source / "model.safetensors.index.json").write_text("{}") and None,
    "calibration.json": lambda source: calibration(source.parent / "calibration.json", 4) and None,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_while_a_calibration_is_compared_with_the_weights_is_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, compare = tiny.tiny_checkpoint(tmp_path / "source"), convert.refuse_foreign
    options = ConversionOptions(kv_cache_dtype="fp8", calibration=calibration(tmp_path / "calibration.json"))

    def compare_and_change(path: Path, checkpoint: Path) -> None:
        compare(path, checkpoint)
        CHANGES[name](source)

    monkeypatch.setattr(convert, "refuse_foreign", compare_and_change)
    with pytest.raises(CheckpointError) as caught:
        convert_to(source, tmp_path / "out", options)
    assert caught.value.code == "CKPT-CHANGED"
    assert caught.value.where is not None and Path(caught.value.where).name == name
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("output_format", ["tensorrt_llm", "hf"])
@pytest.mark.parametrize("remove", [True, False], ids=["removed", "replaced"])
def test_another_config_in_the_middle_of_the_weights_is_noticed(
    remove: bool, output_format: str, tmp_path: Path
) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    scales = calibration(tmp_path / "calibration.json")
    options = ConversionOptions(kv_cache_dtype="fp8", calibration=scales, output_format=output_format)  # type: ignore[arg-type]

    def change(_: Progress) -> None:
        (source / "config.json").unlink(missing_ok=True) if remove else other_config(source)

    with pytest.raises(CheckpointError) as caught:
        convert_to(source, tmp_path / "out", options, change)
    assert (caught.value.code, caught.value.where) == ("CKPT-CHANGED", str(source / "config.json"))
    assert not (tmp_path / "out").exists()


def test_a_shard_that_is_gone_before_it_is_opened_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source", max_shard_bytes=100_000)
    last = max(source.glob("*.safetensors"))
    options = ConversionOptions(calibration=calibration(tmp_path / "calibration.json"))
    monkeypatch.setattr(convert, "refuse_foreign", lambda *_: last.unlink())
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CheckpointError) as caught:
        convert_to(source, tmp_path / "out", options)
    assert (caught.value.code, caught.value.where) == ("CKPT-CHANGED", str(last))
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files
