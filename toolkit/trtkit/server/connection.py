"""From what the user names, BUILD or grpc://host:port, to an address that answers. Knows servers, no requests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtkit.builds import Build, open_build
from trtkit.errors import InputError
from trtkit.progress import OnProgress, silent
from trtkit.server.endpoints import LOCALHOST, Endpoints, free_endpoints
from trtkit.server.launch import ServerFolders, ServerOptions
from trtkit.server.state import find_running
from trtkit.server.triton_server import TritonServer

_SCHEME = "grpc://"


def parse_address(target: str) -> str | None:
    """host:port of a grpc:// URL; None for anything without a scheme, which is a build directory.

    Raises InputError for a URL that is none of ours.
    """
    if "://" not in target:
        return None
    host, colon, port = target.removeprefix(_SCHEME).rpartition(":")
    if not target.startswith(_SCHEME) or not (host and colon and port.isdigit()):
        raise InputError(f"{target} is no address of a server", "write grpc://host:port", code="URL")
    return f"{host}:{port}"


@contextmanager
def open_address(target: str, options: ServerOptions, on_progress: OnProgress = silent) -> Iterator[str]:
    """host:port of the server at a URL, of the one that serves BUILD now, or of one that is started for the call.

    A server that was started here is stopped at the end. Raises what open_build and TritonServer raise.
    """
    address = parse_address(target)
    if address is not None:
        yield address
        return
    build = open_build(Path(target))
    running = find_running(ServerFolders(build.folder).state)
    if running is not None:
        yield running.endpoints.grpc
        return
    with TritonServer(build.folder, options=options, on_progress=on_progress) as server:
        yield server.endpoints.grpc


def endpoints_of(build: Build, ports: dict[str, int | None], host: str = LOCALHOST) -> Endpoints:
    """Where a build is to be served: ports given ("http", "grpc", "metrics"), or else those of its YAML.

    0 chooses a free port. Raises InputError when two are the same.
    """
    serving, free = build.config.serving, free_endpoints(host)
    chosen = {}
    for name, configured in (
        ("http", serving.http_port),
        ("grpc", serving.grpc_port),
        ("metrics", serving.metrics_port),
    ):
        asked = ports.get(name)
        chosen[name] = free.ports[name] if asked == 0 else configured if asked is None else asked
    if len(set(chosen.values())) != len(chosen):
        raise InputError(f"the ports {chosen} must differ", "give three different ones, or 0", code="PORTS")
    return Endpoints(chosen["http"], chosen["grpc"], chosen["metrics"], host)
