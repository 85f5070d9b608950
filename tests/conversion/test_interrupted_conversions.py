"""A conversion that is killed at any moment continues and ends with the same files; a finished one is left alone."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny
from trtkit.artifacts import sha256_of
from trtkit.conversion.convert import convert_checkpoint, convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.conversion.verify import verify_checkpoint
from trtkit.errors import CheckpointError, InputError, MissingToolError
from trtkit.progress import Progress

OPTIONS = ConversionOptions(tensor_parallel=2, pipeline_parallel=3)


def digests(folder: Path) -> dict[str, str]:
    """Every file of a directory tree, hidden ones too."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}


def command(source: Path, out: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "trtkit", "convert", str(source), str(out), "--tp", "2", "--pp", "3"]


def test_killed_at_ten_random_moments_it_ends_with_identical_files(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source", hidden_size=512, intermediate_size=2048, num_hidden_layers=6)
    started = time.monotonic()
    subprocess.run(command(source, tmp_path / "whole"), check=True, capture_output=True)
    whole_s = time.monotonic() - started
    moments = random.Random(0)
    killed = 0
    for _ in range(10):
        process = subprocess.Popen(
            command(source, tmp_path / "out"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(moments.uniform(0.3, 1.0) * whole_s)
        os.kill(process.pid, signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        assert not (tmp_path / "out").exists() or (tmp_path / "out" / "conversion.json").is_file()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)  # it was faster: the next one has something to do again
    subprocess.run(command(source, tmp_path / "out"), check=True, capture_output=True)
    assert killed, "no run was killed before it ended"
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert not list(tmp_path.glob(".out.partial"))


def test_rank_files_that_were_finished_are_not_written_again(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    out = tmp_path / "out"
    out.mkdir()

    class Stop(Exception):
        pass

    finished: list[Path] = []

    def stop_in_the_second_stage(event: Progress) -> None:
        finished[:] = sorted(out.glob("rank*.safetensors"))
        if finished and event.done == event.total:
            raise Stop

    with pytest.raises(Stop):
        convert_checkpoint(source, out, OPTIONS, stop_in_the_second_stage)
    assert [path.name for path in finished] == ["rank0.safetensors", "rank1.safetensors"]
    written_at = {path: path.stat().st_mtime_ns for path in finished}
    report = convert_checkpoint(source, out, OPTIONS)
    assert [file.skipped for file in report.files] == [True, True, False, False, False, False]
    assert {path: path.stat().st_mtime_ns for path in finished} == written_at
    assert verify_checkpoint(out) == report.num_bytes
    assert not list(out.glob(".*"))


def free_bytes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=count))


def test_what_an_interrupted_run_left_needs_no_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    scratch = tmp_path / ".out.partial"

    def stop(_: Progress) -> None:
        if (scratch / "rank1.safetensors").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_to(source, tmp_path / "out", OPTIONS, stop)
    whole = convert_to(source, tmp_path / "whole", OPTIONS).num_bytes
    left = sum(file.stat().st_size for file in scratch.glob("rank*.safetensors"))
    spare_bytes = 16 << 20
    free_bytes(monkeypatch, whole - left + spare_bytes - 1)
    with pytest.raises(MissingToolError, match="GB free"):
        convert_to(source, tmp_path / "out", OPTIONS)
    free_bytes(monkeypatch, whole - left + spare_bytes)
    assert [file.skipped for file in convert_to(source, tmp_path / "out", OPTIONS).files][:3] == [True, True, False]


def test_rank_files_beside_out_are_nobody_s_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    (tmp_path / "rank0.safetensors").write_bytes(bytes(1 << 20))
    free_bytes(monkeypatch, 16 << 20)
    with pytest.raises(MissingToolError, match="GB free") as caught:
        convert_to(source, tmp_path / "out", OPTIONS)
    assert (caught.value.code, caught.value.where) == ("DISK-SPACE", str(tmp_path / "out"))
    assert caught.value.exit_code == 3


def test_finished_rank_files_of_other_options_are_not_kept(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    out = tmp_path / "out"
    out.mkdir()
    convert_checkpoint(source, out, ConversionOptions(dtype="float16"))
    report = convert_checkpoint(source, out, ConversionOptions(dtype="bfloat16"))
    assert [file.skipped for file in report.files] == [False]
    assert verify_checkpoint(out) == report.num_bytes


def test_a_finished_conversion_is_skipped_and_a_changed_source_is_not(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    first = convert_to(source, tmp_path / "out", OPTIONS)
    assert not first.skipped
    again = convert_to(source, tmp_path / "out", OPTIONS)
    assert again.skipped and again.files == tuple(
        type(file)(file.name, file.num_bytes, file.crc32, True) for file in first.files
    )
    tiny.tiny_checkpoint(source, vocab_size=330)
    assert not convert_to(source, tmp_path / "out", OPTIONS).skipped


def test_verify_reads_the_files_again(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    report = convert_to(source, tmp_path / "out", OPTIONS, verify=True)
    assert report.verified
    damaged = tmp_path / "out" / "rank3.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-5] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(CheckpointError, match="checksum") as caught:
        verify_checkpoint(tmp_path / "out")
    assert (caught.value.code, caught.value.where) == ("CONV-VERIFY", str(damaged))


def test_someone_elses_directory_is_not_replaced(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("dear")
    with pytest.raises(InputError) as caught:
        convert_to(source, tmp_path / "out", OPTIONS)
    assert caught.value.code == "OUT-EXISTS"
    assert (tmp_path / "out" / "letter.txt").read_text() == "dear"
    for out in (
        source,
        source / "inside",
        tmp_path / "out" / "letter.txt",
        tmp_path / "out" / "letter.txt" / "deep" / "x",
    ):
        with pytest.raises(InputError) as caught:
            convert_to(source, out, OPTIONS)
        assert caught.value.code == "OUT-EXISTS"


def test_equal_inputs_give_equal_files_wherever_they_lie(tmp_path: Path) -> None:
    for name in ("a", "b"):
        convert_to(tiny.tiny_checkpoint(tmp_path / name / "source"), tmp_path / name / "out", OPTIONS)
    a, b = digests(tmp_path / "a" / "out"), digests(tmp_path / "b" / "out")
    a.pop(".trtkit-stage.json"), b.pop(".trtkit-stage.json")
    assert a == b


def test_a_sliding_window_is_not_forgotten(tmp_path: Path) -> None:
    """TensorRT-LLM's checkpoint has no place for it, so the report says where it is set when serving."""
    report = convert_to(tiny.tiny_checkpoint(tmp_path / "source", "gemma2"), tmp_path / "out", ConversionOptions())
    notes = [(finding.code, finding.cause) for finding in report.findings]
    assert notes == [("CONV-WINDOW", "2 of 3 layers attend to the last 16 tokens only")]
    assert report.findings[0].fix.startswith("`trtkit build` writes max_attention_window_size")
