"""Why a server failed, read from its log. Knows Triton's log lines, no processes."""

import re
from pathlib import Path

from trtkit.errors import ServerError

# E1129 14:51:28.270234 8174 server.cc:241] "message"
_ERROR_LINE = re.compile(r"^E\d{4} \S+ \d+ \S+\] (?P<text>.*)$")
_HARMLESS = ("CudaDriverHelper", "unable to create stream", "Unable to allocate pinned")
_MAX_LINES = 15


def log_size(log: Path) -> int:
    """Bytes written so far; an offset for `errors_since`."""
    return log.stat().st_size if log.exists() else 0


def errors_since(log: Path, offset: int = 0) -> list[str]:
    """The error lines after `offset`, last ones kept, without those that every start on a CPU prints."""
    with log.open("rb") as file:
        file.seek(offset)
        lines = file.read().decode("utf-8", "replace").splitlines()
    found = [match["text"] for line in lines if (match := _ERROR_LINE.match(line))]
    found += [line for line in lines if line.startswith(("[libprotobuf ERROR", "terminate called", "error:"))]
    return [line for line in found if not any(word in line for word in _HARMLESS)][-_MAX_LINES:]


def failure(cause: str, log: Path, *, offset: int = 0, reason: str = "") -> ServerError:
    """A ServerError with the server's own words: `reason`, or else the log's error lines."""
    words = reason or "\n".join(errors_since(log, offset)) or "the log says nothing"
    return ServerError(f"{cause}:\n{words}", f"mend what it names; the whole log is {log}", code="SERVER")
