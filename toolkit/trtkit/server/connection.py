"""From what the user names, BUILD or URL, to an address that answers. Knows servers, no requests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from trtkit.builds import Build, open_build
from trtkit.errors import InputError
from trtkit.progress import OnProgress, silent
from trtkit.server.endpoints import LOCALHOST, Endpoints, free_endpoints
from trtkit.server.launch import ServerFolders, ServerOptions
from trtkit.server.state import find_running
from trtkit.server.triton_server import TritonServer

SCHEMES = ("grpc", "http")


@dataclass(frozen=True)
class Address:
    """A server: scheme is "grpc" or "http", address host:port."""

    scheme: str
    address: str


def parse_address(target: str) -> Address | None:
    """The server of a URL; None for anything without a scheme, which is a build directory.

    Raises InputError for a URL that is none of ours.
    """
    scheme, separator, _ = target.partition("://")
    if not separator:
        return None
    address = host_and_port(target)
    if scheme not in SCHEMES or address is None:
        raise InputError(
            f"{target} is no address of a server", "write grpc://host:port, or http://host:port", code="URL"
        )
    return Address(scheme, address)


def host_and_port(url: str) -> str | None:
    """host:port of a URL that has nothing else; an IPv6 host in brackets, as in the URL. None for anything else."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if not host or not port or extra or not host.isprintable() or " " in host:
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def open_address(target: str, options: ServerOptions, on_progress: OnProgress = silent) -> Iterator[Address]:
    """The server at a URL, the one that serves BUILD now, or one that is started for the call; these two by gRPC.

    A server that was started here is stopped at the end. Raises what open_build and TritonServer raise.
    """
    address = parse_address(target)
    if address is not None:
        yield address
        return
    with open_server(open_build(Path(target)), options, on_progress) as grpc:
        yield Address("grpc", grpc)


@contextmanager
def open_server(build: Build, options: ServerOptions | None = None, on_progress: OnProgress = silent) -> Iterator[str]:
    """host:port, for gRPC, of the server that serves the build now, or of one that is started for the call.

    A server that was started here is stopped at the end, so other processes may not use it: they are refused. Raises
    what TritonServer raises.
    """
    running = find_running(ServerFolders(build.folder).state)
    if running is not None and running.owner in (None, os.getpid()):
        yield running.endpoints.grpc
        return
    own = replace(options or ServerOptions(), for_one_call=True)
    with TritonServer(build.folder, options=own, on_progress=on_progress) as server:
        yield server.endpoints.grpc


def endpoints_of(build: Build, ports: dict[str, int | None], host: str = LOCALHOST) -> Endpoints:
    """Where a build is to be served: ports given ("http", "grpc", "metrics"), or else those of its YAML.

    0 chooses a free port, for which the host must be this machine's. Raises InputError when two are the same.
    """
    serving = build.config.serving
    free = free_endpoints(host).ports if 0 in ports.values() else {}
    chosen = {}
    for name, configured in (
        ("http", serving.http_port),
        ("grpc", serving.grpc_port),
        ("metrics", serving.metrics_port),
    ):
        asked = ports.get(name)
        chosen[name] = free[name] if asked == 0 else configured if asked is None else asked
    if len(set(chosen.values())) != len(chosen):
        raise InputError(f"the ports {chosen} must differ", "give three different ones, or 0", code="PORTS")
    return Endpoints(chosen["http"], chosen["grpc"], chosen["metrics"], host)
