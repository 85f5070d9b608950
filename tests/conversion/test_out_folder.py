"""OUT: what others put there is kept, links are followed, and only a whole conversion counts as one."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from trtkit.artifacts import sha256_of
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import BuildError, InputError
from trtkit.progress import Progress

OPTIONS = ConversionOptions(dtype="float16")
OTHER = replace(OPTIONS, dtype="bfloat16")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny.tiny_checkpoint(tmp_path / "source")


@pytest.fixture
def out(source: Path, tmp_path: Path) -> Path:
    """A finished conversion."""
    convert_to(source, tmp_path / "out", OPTIONS)
    return tmp_path / "out"


def files(folder: Path) -> dict[str, tuple[int, str]]:
    """Inode and digest of every file."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): (path.stat().st_ino, sha256_of(path)) for path in found}


def refused(source: Path, out: Path, options: ConversionOptions = OPTIONS) -> InputError:
    with pytest.raises(InputError) as caught:
        convert_to(source, out, options)
    assert caught.value.code == "OUT-EXISTS"
    return caught.value


OTHERS: dict[str, Callable[[Path], object]] = {
    "tokenizer.json": lambda path: path.write_text("hi"),
    "notes/mine.txt": lambda path: (path.parent.mkdir(), path.write_text("hi")),
    ".hidden": lambda path: path.write_text("hi"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "folder": lambda path: path.symlink_to(path.parent.parent / "source"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_others_put_into_out_changes_nothing_and_is_kept(name: str, source: Path, out: Path) -> None:
    OTHERS[name](out / name)
    before = files(out)
    assert convert_to(source, out, OPTIONS).skipped
    error = refused(source, out, OTHER)
    assert name in error.cause and error.where == str(out)
    assert files(out) == before
    assert os.path.lexists(out / name)
    assert {path.name for path in out.parent.iterdir()} == {"source", "out"}


def test_a_file_that_was_put_into_out_meanwhile_is_kept(source: Path, out: Path) -> None:
    def put(_: Progress) -> None:
        (out / "late.txt").write_text("hi")

    with pytest.raises(InputError, match=r"late\.txt"):
        convert_to(source, out, OTHER, put)
    assert (out / "late.txt").read_text() == "hi"
    assert '"dtype": "float16"' in (out / "config.json").read_text()
    (out / "late.txt").unlink()
    convert_to(source, out, OTHER)
    assert '"dtype": "bfloat16"' in (out / "config.json").read_text()


def test_a_copy_without_its_record_is_replaced_unless_it_holds_more(source: Path, out: Path) -> None:
    (out / ".trtkit-stage.json").unlink()
    (out / "notes.txt").write_text("hi")
    assert "notes.txt" in refused(source, out).cause
    (out / "notes.txt").unlink()
    assert not convert_to(source, out, OPTIONS).skipped


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"files": 3}', '{"files": {"a": {"bytes": "1"}}}', "\udcff"])
def test_a_damaged_manifest_of_the_same_size_is_made_anew(text: str, source: Path, out: Path) -> None:
    before = (out / "conversion.json").read_bytes()
    (out / "conversion.json").write_bytes(text.encode(errors="surrogateescape").ljust(len(before)))
    report = convert_to(source, out, OPTIONS, verify=True)
    assert not report.skipped and report.verified
    assert (out / "conversion.json").read_bytes() == before


@pytest.mark.parametrize(
    ("known", "broken"),
    [
        ('"bytes": ', '"byte": '),
        ('"bytes": ', '"bytes":"'),
        ('"crc32": "', '"crc32": ['),
        ('"findings": []', '"findings": 7'),
    ],
)
def test_a_manifest_of_other_types_is_made_anew(known: str, broken: str, source: Path, out: Path) -> None:
    before = (out / "conversion.json").read_text()
    damaged = before.replace(known, broken)
    assert damaged != before
    (out / "conversion.json").write_text(damaged.ljust(len(before))[: len(before)])
    assert not convert_to(source, out, OPTIONS).skipped
    assert (out / "conversion.json").read_text() == before


def test_the_source_may_be_named_by_any_path(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source.parent)
    (source.parent / "link").symlink_to(source)
    for name in ("source", "./source/../source", "link", str(source)):
        assert convert_to(Path(name), Path("out"), OPTIONS).skipped, name


def test_another_checkpoint_of_equal_times_and_sizes_is_not_taken_for_the_same(source: Path, out: Path) -> None:
    other = source.parent / "other"
    shutil.copytree(source, other)
    data = (other / "model.safetensors").read_bytes()
    (other / "model.safetensors").write_bytes(data[:-4] + b"\0\0\0\0")
    for name in ("model.safetensors", "config.json"):
        times = (source / name).stat()
        os.utime(other / name, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not convert_to(other, out, OPTIONS).skipped


@pytest.mark.parametrize("name", ["", ".", "..", "../y/..", "../here"])
def test_the_directory_of_the_command_is_not_replaced(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "deep" / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    refused(source, Path(name))
    assert here.samefile(Path.cwd()) and not list(here.iterdir())
    assert [path.name for path in here.parent.iterdir()] == ["here"]
    assert {path.name for path in tmp_path.iterdir()} == {"source", "deep"}


def test_a_finished_conversion_is_known_from_inside(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(out)
    report = convert_to(source, Path(), OPTIONS)
    assert report.skipped and report.out == Path()
    refused(source, Path(), OTHER)


def test_a_mount_point_is_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "volume").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "volume")
    assert "mount point" in refused(source, tmp_path / "volume").cause
    assert not list((tmp_path / "volume").iterdir())
    assert not convert_to(source, tmp_path / "volume" / "out", OPTIONS).skipped


@pytest.mark.parametrize("exists", [True, False], ids=["to an empty folder", "to nothing yet"])
def test_a_link_is_written_where_it_points(exists: bool, source: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "disk" / "target", tmp_path / "link"
    if exists:
        target.mkdir(parents=True)
    link.symlink_to(target)
    for options in (OPTIONS, OTHER):
        report = convert_to(source, link, options, verify=True)
        assert (report.out, report.skipped) == (link, False)
    assert link.is_symlink() and (target / "conversion.json").is_file()
    assert convert_to(source, target, OTHER).skipped
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    assert {path.name for path in tmp_path.iterdir()} == {"source", "disk", "link"}


def test_a_link_to_itself_is_one_clear_message(source: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BuildError, match="lead to each other"):
        convert_to(source, tmp_path / "loop", OPTIONS)


def test_a_source_that_changes_between_two_readings_is_noticed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of OUT is made of the first reading, its files of the second."""
    from trtkit.conversion import convert

    check = convert.check_disk

    def check_and_touch(*arguments: object) -> None:
        check(*arguments)  # type: ignore[arg-type]
        os.utime(source / "model.safetensors")
        monkeypatch.setattr(convert, "check_disk", check)

    monkeypatch.setattr(convert, "check_disk", check_and_touch)
    with pytest.raises(InputError) as caught:
        convert_to(source, tmp_path / "out", OPTIONS)
    assert caught.value.code == "CKPT-CHANGED"
    assert not (tmp_path / "out").exists()
