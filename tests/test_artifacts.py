"""Stage directories: whole or not at all, found again by key, continued after an interruption."""

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from trtkit.artifacts import disk_error, is_complete, key_of, locked, read_record, stage_output, write_text
from trtkit.errors import BuildError, MissingToolError


def finish(out: Path, key: str, text: str = "x") -> None:
    with stage_output(out, stage="test", key=key) as scratch:
        (scratch / "file.txt").write_text(text)


def test_equal_inputs_give_equal_keys_whatever_their_order() -> None:
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})


def test_a_finished_stage_is_complete_for_its_own_key_only(tmp_path: Path) -> None:
    finish(tmp_path / "out", "k")
    assert is_complete(tmp_path / "out", "k")
    assert not is_complete(tmp_path / "out", "other")


@pytest.mark.parametrize("damage", ["truncated", "missing", "extra"])
def test_a_damaged_stage_is_not_complete(tmp_path: Path, damage: str) -> None:
    finish(tmp_path / "out", "k", "four")
    file = tmp_path / "out" / "file.txt"
    {"truncated": lambda: file.write_text("fou"), "missing": file.unlink, "extra": lambda: (file.parent / "y").touch()}[
        damage
    ]()
    assert not is_complete(tmp_path / "out", "k")


@pytest.mark.parametrize(
    ("damage", "complete"), [("none", True), ("extra", True), ("truncated", False), ("missing", False)]
)
def test_where_others_may_write_too_only_the_stage_s_own_files_count(
    tmp_path: Path, damage: str, complete: bool
) -> None:
    finish(tmp_path / "out", "k", "four")
    file = tmp_path / "out" / "file.txt"
    {
        "none": lambda: None,
        "extra": lambda: (file.parent / "y").touch(),
        "truncated": lambda: file.write_text("fou"),
        "missing": file.unlink,
    }[damage]()
    assert is_complete(tmp_path / "out", "k", beside_others=True) is complete
    assert not is_complete(tmp_path / "out", "other", beside_others=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"stage": "t", "key": "k", "files": ["file.txt"]}'])
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    finish(tmp_path / "out", "k")
    (tmp_path / "out" / ".trtkit-stage.json").write_text(text)
    assert read_record(tmp_path / "out") is None
    assert not is_complete(tmp_path / "out", "k", beside_others=True)


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    for target in ("there", "not yet/there"):
        link = tmp_path / f"to {Path(target).parts[0]}"
        link.symlink_to(tmp_path / target)
        finish(link, "k1", "old")
        finish(link, "k2", "new")
        assert link.is_symlink()
        assert (tmp_path / target / "file.txt").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"there", "not yet", "to there", "to not yet"}


def test_links_to_each_other_are_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(BuildError, match="lead to each other") as caught:
        finish(tmp_path / "a", "k")
    assert caught.value.code == "DISK"


def test_a_failed_stage_leaves_the_finished_one_untouched(tmp_path: Path) -> None:
    finish(tmp_path / "out", "k1", "old")
    with pytest.raises(RuntimeError), stage_output(tmp_path / "out", stage="test", key="k2") as scratch:
        (scratch / "file.txt").write_text("new")
        raise RuntimeError
    assert (tmp_path / "out" / "file.txt").read_text() == "old"
    assert is_complete(tmp_path / "out", "k1")


def test_the_same_key_finds_what_an_interrupted_run_wrote(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), stage_output(tmp_path / "out", stage="test", key="k") as scratch:
        (scratch / "part").write_text("kept")
        raise KeyboardInterrupt
    with stage_output(tmp_path / "out", stage="test", key="k") as scratch:
        assert (scratch / "part").read_text() == "kept"


def test_a_run_that_is_killed_while_it_reaches_the_disk_is_found_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("trtkit.artifacts._sync_tree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            finish(tmp_path / "out", "k")
    with stage_output(tmp_path / "out", stage="test", key="k") as scratch:
        assert (scratch / "file.txt").read_text() == "x"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"file.txt", ".trtkit-stage.json"}


def test_another_key_starts_with_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), stage_output(tmp_path / "out", stage="test", key="k1") as scratch:
        (scratch / "part").write_text("stale")
        raise KeyboardInterrupt
    with stage_output(tmp_path / "out", stage="test", key="k2") as scratch:
        assert not (scratch / "part").exists()


def test_a_full_disk_is_one_clear_message(tmp_path: Path) -> None:
    out = tmp_path / "o"
    with pytest.raises(MissingToolError, match="No space left") as caught, stage_output(out, stage="t", key="k"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.code == "DISK"
    assert not (tmp_path / "o").exists()


def test_a_disk_that_is_full_from_the_first_file_on_is_the_same_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    out = tmp_path / "o"
    with pytest.raises(MissingToolError, match="No space left") as caught, stage_output(out, stage="t", key="k"):
        pytest.fail("nothing can be written")
    assert caught.value.code == "DISK" and caught.value.where == str(tmp_path / ".o.partial" / ".trtkit-key")


def test_a_held_folder_is_held_once_and_free_afterwards(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("not-there-yet")
    with locked(tmp_path / "link"):
        with pytest.raises(BuildError) as caught, locked(tmp_path / "not-there-yet"):
            pytest.fail("it is held through its other name")
        assert caught.value.code == "LOCKED"
    with locked(tmp_path / "link"):
        assert list((tmp_path / "not-there-yet").iterdir()) == []


def test_two_writers_cannot_write_one_stage(tmp_path: Path) -> None:
    with stage_output(tmp_path / "out", stage="t", key="k") as scratch:
        (scratch / "file.txt").write_text("first")
        with (
            pytest.raises(BuildError, match="another trtkit process"),
            stage_output(tmp_path / "out", stage="t", key="k"),
        ):
            pass
    assert (tmp_path / "out" / "file.txt").read_text() == "first"


def test_nothing_but_the_stage_is_left_beside_it(tmp_path: Path) -> None:
    finish(tmp_path / "out", "k1")
    finish(tmp_path / "out", "k2")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_killed_writer_leaves_no_half_written_stage_and_no_lock(tmp_path: Path) -> None:
    writer = (
        "import os, signal, sys; from pathlib import Path; from trtkit.artifacts import stage_output\n"
        "with stage_output(Path(sys.argv[1]), stage='t', key='k') as scratch:\n"
        "    (scratch / 'part').write_text('kept'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-P", "-c", writer, str(tmp_path / "out")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert read_record(tmp_path / "out") is None
    finish(tmp_path / "out", "k")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [".trtkit-stage.json", "file.txt", "part"]


def test_what_a_killed_write_of_a_text_left_is_not_part_of_the_stage(tmp_path: Path) -> None:
    writer = (
        "import os, signal, sys; from pathlib import Path; from trtkit.artifacts import stage_output, write_text\n"
        "with stage_output(Path(sys.argv[1]), stage='t', key='k') as scratch:\n"
        "    write_text(scratch / 'part', 'kept'); (scratch / '.mine.tmp').write_text('kept')\n"
        "    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    write_text(scratch / 'deep' / 'lost', 'unfinished')\n"
    )
    killed = subprocess.run([sys.executable, "-P", "-c", writer, str(tmp_path / "out")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.suffix for path in (tmp_path / ".out.partial" / "deep").iterdir()] == [".tmp"]
    finish(tmp_path / "out", "k")
    record = read_record(tmp_path / "out")
    assert record is not None and record["files"] == {".mine.tmp": 4, "file.txt": 1, "part": 4}
    assert not list((tmp_path / "out" / "deep").iterdir())


def test_a_text_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "one")
    write_text(tmp_path / "a.txt", "two")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "two"


@pytest.mark.parametrize(
    ("number", "exit_code", "way"),
    [
        (errno.ENOSPC, 3, "free space"),
        (errno.EDQUOT, 3, "free space"),
        (errno.EFBIG, 3, "free space"),
        (errno.EIO, 4, "choose another --out"),
        (errno.EROFS, 4, "choose another --out"),
    ],
)
def test_only_a_disk_without_room_is_told_to_free_space(number: int, exit_code: int, way: str) -> None:
    error = disk_error(OSError(number, "said by the system"), Path("out"))
    assert (error.code, error.exit_code) == ("DISK", exit_code)
    assert error.fix.startswith(way)
