"""CRC-32 of what is written: finds damage, and is fast enough not to hold up the writing (SHA-256 halves its speed)."""

import zlib
from pathlib import Path

_CHUNK_BYTES = 1 << 20


class Crc32:
    """A running CRC-32 (zlib's) of bytes given in order."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: memoryview | bytes, /) -> None:
        """Take more bytes."""
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        """Eight hexadecimal digits."""
        return f"{self._value:08x}"


def crc32_of(path: Path) -> str:
    """CRC-32 of a file's bytes."""
    checksum = Crc32()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum.update(chunk)
    return checksum.hexdigest()
