"""From what the user names, a build directory or a URL, to an endpoint that answers. Knows servers, no prompts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtkit.builds import Build, open_build
from trtkit.errors import InputError
from trtkit.evaluate.endpoint import Endpoint
from trtkit.evaluate.triton_endpoint import TritonEndpoint
from trtkit.progress import OnProgress, silent
from trtkit.server.launch import ServerFolders
from trtkit.server.state import find_running
from trtkit.server.triton_server import TritonServer

_SCHEME = "grpc://"


@dataclass(frozen=True)
class Target:
    """What is checked or measured: a finished build, or the address (host:port) of a server somebody else runs."""

    name: str
    build: Build | None = None
    address: str | None = None


def parse_target(text: str) -> Target:
    """Read BUILD or grpc://host:port. Raises InputError for anything else."""
    if text.startswith(_SCHEME):
        host, colon, port = text.removeprefix(_SCHEME).rpartition(":")
        if not (colon and host and port.isdigit()):
            raise InputError(f"{text} is no address", "write grpc://host:port", code="URL")
        return Target(text, address=f"{host}:{port}")
    if "://" in text:
        raise InputError(f"{text} has a scheme that is not served", "write grpc://host:port", code="URL")
    return Target(text, build=open_build(Path(text)))


def refuse_drafts_without_draft(target: Target, draft_lens: Sequence[int]) -> None:
    """Raise InputError when drafts are asked for of a build that has no draft model."""
    if any(draft_lens) and target.build is not None and target.build.config.draft is None:
        raise InputError(f"{target.name} has no draft", "leave --draft-len out, or build with a draft", code="NO-DRAFT")


@contextmanager
def open_endpoint(target: Target, clock_ns: Callable[[], int], on_progress: OnProgress = silent) -> Iterator[Endpoint]:
    """The endpoint of a target, ready to answer; see open_address."""
    with open_address(target, on_progress) as address, TritonEndpoint(address, clock_ns) as endpoint:
        yield endpoint


@contextmanager
def open_address(target: Target, on_progress: OnProgress = silent) -> Iterator[str]:
    """host:port of the server at the given address, of the one that serves the build now, or of one started for it.

    A server that was started here is stopped at the end. Raises ServerError and MissingToolError as the server does.
    """
    if target.address is not None:
        yield target.address
        return
    assert target.build is not None, "a target has a build or an address"
    running = find_running(ServerFolders(target.build.folder).state)
    if running is not None:
        yield running.endpoints.grpc
        return
    with TritonServer(target.build.folder, on_progress=on_progress) as server:
        yield server.endpoints.grpc
