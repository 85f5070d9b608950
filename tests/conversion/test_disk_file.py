"""A file written past the page cache holds what was written, wherever that is possible or not."""

import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_checkpoint
from trtkit.conversion import disk_file
from trtkit.conversion.checksum import Crc32, crc32_of
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.disk_file import ALIGNMENT, DiskFile
from trtkit.conversion.options import ConversionOptions
from trtkit.conversion.rank_file import RankFile, TensorHeader
from trtkit.conversion.write_lanes import BLOCK_BYTES, WriteLanes
from trtkit.errors import MissingToolError


def aligned(data: bytes) -> memoryview:
    memory = mmap.mmap(-1, max(len(data), 1))
    memory[: len(data)] = data
    return memoryview(memory)[: len(data)]


@pytest.mark.parametrize("direct", [True, False], ids=["past the page cache", "without O_DIRECT"])
@pytest.mark.parametrize("rest", [0, 1, 4095, 4097])
def test_blocks_and_a_rest_are_appended(
    direct: bool, rest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:
        monkeypatch.setattr(disk_file, "_DIRECT", 0)
    parts = [os.urandom(ALIGNMENT * 3), os.urandom(ALIGNMENT), os.urandom(rest)]
    file = DiskFile(tmp_path / "file")
    for part in parts:
        file.write(aligned(part))
    file.finish()
    assert (tmp_path / "file").read_bytes() == b"".join(parts)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP])
def test_a_file_system_that_refuses_direct_writing_is_written_through_the_page_cache(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open, real_write = os.open, os.write
    refused: list[str] = []

    def refuse_open(path: Path, flags: int, mode: int) -> int:
        if flags & os.O_DIRECT and path.name == "at open":
            refused.append("open")
            raise OSError(number, "no direct files here")
        return real_open(path, flags, mode)

    def refuse_write(descriptor: int, data: memoryview) -> int:
        if len(refused) == 1:
            refused.append("write")
            raise OSError(number, "other alignment")
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "open", refuse_open)
    first = DiskFile(tmp_path / "at open")
    first.write(aligned(b"a" * ALIGNMENT))
    first.finish()
    monkeypatch.setattr(os, "write", refuse_write)
    second = DiskFile(tmp_path / "at write")
    second.write(aligned(b"b" * ALIGNMENT))
    second.finish()
    assert refused == ["open", "write"]
    assert (tmp_path / "at open").read_bytes() == b"a" * ALIGNMENT
    assert (tmp_path / "at write").read_bytes() == b"b" * ALIGNMENT


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", no_space)
    values = np.zeros(3 * BLOCK_BYTES, np.uint8)
    with WriteLanes() as lanes:
        file = RankFile(tmp_path / "rank0.safetensors", [TensorHeader("w", "uint8", values.shape)], lanes)
        with pytest.raises(OSError, match="No space left"):
            file.append(values)
        file.abandon()
    assert not list(tmp_path.iterdir())


def test_a_header_that_cannot_be_written_leaves_no_file_and_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", no_space)
    headers = [TensorHeader(str(number).zfill(200), "uint8", (1,)) for number in range(50_000)]
    before = len(list(Path("/proc/self/fd").iterdir()))
    with WriteLanes() as lanes, pytest.raises(OSError, match="No space left"):
        RankFile(tmp_path / "rank0.safetensors", headers, lanes)
    assert not list(tmp_path.iterdir())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_ranks_opened_before_one_that_cannot_be_are_closed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_checkpoint(tmp_path / "source")
    real_open = os.open

    def no_second(path: Path | str, flags: int, mode: int = 0o777) -> int:
        if Path(path).name == ".rank1.safetensors.partial":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", no_second)
    (tmp_path / "out").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(MissingToolError, match="No space left"):
        convert_checkpoint(source, tmp_path / "out", ConversionOptions(tensor_parallel=2))
    assert not list((tmp_path / "out").iterdir())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_rank_file_of_many_blocks_holds_its_tensors_and_their_checksum(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, 2 * BLOCK_BYTES + 12345, np.uint8)
    path = tmp_path / "rank0.safetensors"
    with WriteLanes() as lanes:
        file = RankFile(path, [TensorHeader("w", "uint8", values.shape)], lanes)
        for part in np.array_split(values, 7):
            file.append(part.copy())
            part[:] = 0
        crc32 = file.finish()
    assert crc32 == crc32_of(path)
    whole = Crc32()
    whole.update(path.read_bytes())
    assert whole.hexdigest() == crc32
    expected = np.random.default_rng(0).integers(0, 256, 2 * BLOCK_BYTES + 12345, np.uint8)
    assert path.read_bytes().endswith(expected.tobytes())
