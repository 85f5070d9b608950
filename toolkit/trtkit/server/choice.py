"""Which server `trtkit serve` means: its own, one in a container, or one that runs already. Starts nothing itself."""

import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from trtkit.builds import open_build
from trtkit.errors import InputError
from trtkit.progress import OnProgress
from trtkit.server.attached import AttachedServer
from trtkit.server.connection import endpoints_of
from trtkit.server.container import find_program, plan_container
from trtkit.server.container_server import ContainerServer
from trtkit.server.endpoints import LOCALHOST, local_address
from trtkit.server.launch import ServerOptions
from trtkit.server.run import ReadyServer
from trtkit.server.triton_server import TritonServer


@dataclass(frozen=True)
class ServeChoices:
    """What the command line decides. Ports: None is the build's, 0 a free one. container: None, "auto" or a program.

    environment is what docker or podman is started with.
    """

    http_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    host: str = LOCALHOST
    drain_s: float = 5.0
    num_threads: int | None = None
    container: str | None = None
    attach: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def choose_server(
    folder: Path, choices: ServeChoices, on_progress: OnProgress, on_event: Callable[[str], None]
) -> AbstractContextManager[ReadyServer]:
    """A context manager that is ready when entered. Raises InputError for choices that exclude each other."""
    _refuse_url(folder)
    if choices.attach and choices.container:
        raise InputError("--attach and --container exclude each other", "leave one out", code="SERVE-OPTION")
    build = open_build(folder)
    ports = {"http": choices.http_port, "grpc": choices.grpc_port, "metrics": choices.metrics_port}
    if choices.attach and 0 in ports.values():
        raise InputError("--attach needs the ports of the running server", "give them, not 0", code="SERVE-OPTION")
    host = choices.host if choices.attach else local_address(choices.host)
    endpoints = endpoints_of(build, ports, host)
    options = ServerOptions(drain_s=choices.drain_s, num_threads=choices.num_threads)
    if choices.attach:
        return AttachedServer(folder, endpoints)
    if choices.container:
        name = f"trtkit-{secrets.token_hex(4)}"
        run = plan_container(build, find_program(choices.container), name, endpoints)
        return ContainerServer(run, options, choices.environment, on_progress=on_progress)
    return TritonServer(folder, endpoints, options, on_progress=on_progress, on_event=on_event)


def _refuse_url(folder: Path) -> None:
    """Whoever gives serve an address means a server that runs already."""
    scheme, *rest = folder.parts or ("",)
    if scheme in ("grpc:", "http:", "https:"):
        url = f"{scheme}//{'/'.join(rest)}"
        raise InputError(
            f"{url} is a server that runs already, and serve starts one on a build directory",
            f"ask it with trtkit generate {url} PROMPT; trtkit serve BUILD --attach follows it",
            code="SERVE-URL",
        )
