"""launch/server.json: who serves a build at the moment. Knows the record, and whether its process still lives."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from trtkit.artifacts import write_text
from trtkit.errors import InputError
from trtkit.server.endpoints import Endpoints
from trtkit.server.processes import clear_shared_memory, describe_process, kill_stubs, start_time_of

_SCHEMA = "trtkit.server/1"


@dataclass(frozen=True)
class RunningServer:
    """A server of this build. started_at (seconds since the epoch) tells it from a later process with its pid.

    owner: the process whose call it was started for, and with whose call it ends; None for one that anybody may use.
    """

    pid: int
    started_at: float
    shm_prefix: str
    endpoints: Endpoints
    owner: int | None = None


def write_state(path: Path, server: RunningServer) -> None:
    """Record a server that is ready."""
    write_text(path, json.dumps({"schema": _SCHEMA, **asdict(server)}, indent=1) + "\n")


def find_running(path: Path) -> RunningServer | None:
    """The living server recorded in `path`, or None."""
    server = _read(path)
    return server if server is not None and start_time_of(server.pid) == server.started_at else None


def clear_dead(path: Path) -> None:
    """Remove the record of a server that was killed together with the command that ran it, its stubs and its memory.

    For who holds the claim alone: anybody else may hit upon the record of the next server.
    """
    server = _read(path)
    if server is not None and find_running(path) is None:
        path.unlink(missing_ok=True)
        kill_stubs(server.shm_prefix)
        clear_shared_memory(server.shm_prefix)


def refuse_second(path: Path, build: Path) -> None:
    """Raise InputError while the server recorded in `path` lives: two would share the log and the record."""
    running = find_running(path)
    if running is not None and running.owner is not None:
        raise InputError(
            f"{describe_process(running.owner)} serves {build} for itself until it has ended",
            "wait for it; commands share a server that trtkit serve BUILD started",
            code="SERVER-RUNNING",
        )
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
            owner=record.get("owner"),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
