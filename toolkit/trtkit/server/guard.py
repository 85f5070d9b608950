"""A process that outlives its owner and then ends the owner's server. Knows pids and a pipe, no Triton.

The kernel closes the owner's end of the pipe however the owner ends, kill -9 included. The server's own death signal
(PR_SET_PDEATHSIG) would not do: it follows the thread that started the server, and one that is started again, or from a
program's worker thread, would end with that thread.
"""

import contextlib
import os
import signal
import subprocess
import sys

from trtkit.errors import ServerError
from trtkit.server.processes import clear_shared_memory, kill_stubs, start_time_of

_END_TIMEOUT_S = 10.0


class Guard:
    """Watches over one server until `release`, which comes when the server has ended."""

    def __init__(self, shm_prefix: str) -> None:
        command = [sys.executable, "-P", "-m", "trtkit.server.guard", shm_prefix]
        try:
            # A session of its own: Ctrl-C and a signal to our group are for us, and we need it afterwards.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"cannot start {command[0]}: {error.strerror}", "run trtkit doctor") from error

    @property
    def pid(self) -> int:
        """The watching process."""
        return self._process.pid

    def watch(self, pid: int) -> None:
        """The server is this process."""
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.write(f"{pid}\n".encode())
            pipe.flush()

    def release(self) -> None:
        """Let the process end; it finds nothing to do."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def keep_watch(shm_prefix: str) -> None:
    """Read the server's pid, wait for the pipe's end, and end what is left of the server then."""
    line = sys.stdin.buffer.readline()
    if not line.strip():
        return
    pid = int(line)
    started_at = start_time_of(pid)
    sys.stdin.buffer.read()
    # A pid may be another process's by now.
    if started_at is not None and start_time_of(pid) == started_at:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    kill_stubs(shm_prefix, grace_s=1.0)
    clear_shared_memory(shm_prefix)


if __name__ == "__main__":
    keep_watch(sys.argv[1])
