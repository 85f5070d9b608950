"""The right to serve a build: one process has it at a time. Knows a folder and a lock, no server."""

import contextlib
import fcntl
import os
from pathlib import Path

from trtkit.errors import InputError, ServerError
from trtkit.server.processes import describe_process


class Claim:
    """A lock on a build's folder launch/, from before its server starts until it has ended.

    The record of a server is written when it is ready; two that start at once would both find none, and share the log
    and the backends. The kernel gives the lock back when its process dies. A file system without locks has none. A file
    says whose it is, for the message to others.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._holder = folder / "claimed_by"
        self._descriptor: int | None = None

    def take(self) -> None:
        """Raise InputError when another process has it, ServerError when the folder cannot be made."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ServerError(
                f"cannot write {self._folder}: {error.strerror}", "free space, or make the build directory writable"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(
                f"{self._other()} serves {self._folder.parent} or is about to",
                "wait until its server is ready, or has ended; commands share one that trtkit serve BUILD started",
                code="SERVER-RUNNING",
            ) from None
        except OSError:  # a network file system that locks no folders
            pass
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # a full disk: whatever needs room there says so
            self._holder.write_text(str(os.getpid()), encoding="utf-8")

    def release(self) -> None:
        """Give it back; harmless when it is not held."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self._holder.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _other(self) -> str:
        """Who holds it; it may not have said so yet."""
        try:
            return describe_process(int(self._holder.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return "another process"
