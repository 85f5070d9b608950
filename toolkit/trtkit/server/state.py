"""launch/server.json: who serves a build at the moment. Knows the record, and whether its process still lives."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from trtkit.artifacts import write_text
from trtkit.errors import InputError
from trtkit.server.endpoints import Endpoints
from trtkit.server.processes import clear_shared_memory, kill_stubs, start_time_of

_SCHEMA = "trtkit.server/1"


@dataclass(frozen=True)
class RunningServer:
    """A server of this build. started_at (seconds since the epoch) tells it from a later process with its pid."""

    pid: int
    started_at: float
    shm_prefix: str
    endpoints: Endpoints


def write_state(path: Path, server: RunningServer) -> None:
    """Record a server that is ready."""
    write_text(path, json.dumps({"schema": _SCHEMA, **asdict(server)}, indent=1) + "\n")


def find_running(path: Path) -> RunningServer | None:
    """The living server recorded in `path`, or None. A record that outlived its server is removed.

    So are the stubs and the shared memory of a server that was killed together with the command that ran it.
    """
    server = _read(path)
    if server is None:
        return None
    if start_time_of(server.pid) == server.started_at:
        return server
    path.unlink(missing_ok=True)
    kill_stubs(server.shm_prefix)
    clear_shared_memory(server.shm_prefix)
    return None


def refuse_second(path: Path, build: Path) -> None:
    """Raise InputError while the server recorded in `path` lives: two would share the log and the record."""
    running = find_running(path)
    if running is not None:
        raise InputError(
            f"{build} is already served by process {running.pid} at grpc://{running.endpoints.grpc}",
            "use that server, or stop it first",
            code="SERVER-RUNNING",
        )


def _read(path: Path) -> RunningServer | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["schema"] != _SCHEMA:
            return None
        return RunningServer(
            pid=int(record["pid"]),
            started_at=float(record["started_at"]),
            shm_prefix=str(record["shm_prefix"]),
            endpoints=Endpoints(**record["endpoints"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
