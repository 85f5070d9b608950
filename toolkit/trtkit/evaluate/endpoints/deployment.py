"""From what the user names, a build directory or a URL, to an endpoint that answers. Knows servers, no prompts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from trtkit.builds import Build, open_build
from trtkit.client.llmapi_client import MODEL as LLMAPI
from trtkit.client.openai_client import OpenAiClient
from trtkit.errors import InputError
from trtkit.evaluate.endpoints.endpoint import Endpoint
from trtkit.evaluate.endpoints.foreign import LlmApiEndpoint, OpenAiEndpoint
from trtkit.evaluate.endpoints.patience import LONGEST_SILENCE_S, Patience, PatientEndpoint
from trtkit.evaluate.endpoints.triton import TritonEndpoint
from trtkit.progress import OnProgress, silent
from trtkit.server.connection import host_and_port, open_server
from trtkit.server.launch import ServerFolders
from trtkit.server.state import find_running
from trtkit.serving.contract import BLS
from trtkit.serving.kserve import Connection

_SCHEME = "grpc://"
_TIMEOUT_S = 10.0
_SOCKET_TIMEOUT_S = 2 * LONGEST_SILENCE_S  # patience ends before
_FORMS = "write grpc://host:port for Triton, or http://host:port/v1 for an OpenAI-compatible server"


@dataclass(frozen=True)
class Target:
    """What is checked or measured: a finished build, or a server somebody else runs: a Triton at an address
    (host:port), or an OpenAI-compatible one at a URL. has_llmapi: its Triton has NVIDIA's llmapi model, not ours."""

    name: str
    build: Build | None = None
    address: str | None = None
    openai_url: str | None = None
    has_llmapi: bool = False

    @property
    def is_foreign(self) -> bool:
        """Served by something that trtkit did not render: it chooses its own draft length."""
        return self.has_llmapi or self.openai_url is not None


def parse_target(text: str) -> Target:
    """Read BUILD, grpc://host:port or http(s)://host[:port]/v1. Raises InputError for anything else."""
    if text.startswith(_SCHEME):
        address = host_and_port(text)
        if address is None:
            raise InputError(f"{text} is no address", _FORMS, code="URL")
        return Target(text, address=address)
    if text.startswith(("http://", "https://")) and text.rstrip("/").endswith("/v1") and _has_host(text):
        return Target(text, openai_url=text)
    if "://" in text:
        raise InputError(f"{text} is no URL that can be asked", _FORMS, code="URL")
    return Target(text, build=open_build(Path(text)))


def _has_host(url: str) -> bool:
    """Whether a URL names a host, and a port that can be one."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def refuse_draft_lengths(target: Target, draft_lens: Sequence[int]) -> None:
    """Raise InputError when drafts are asked for of a build without a draft or with a shorter one, or of a server that
    cannot be told; before anything is measured or a server started for it."""
    if draft_lens and target.is_foreign:
        raise InputError(f"{target.name} chooses its own draft length", "leave --draft-len out", code="NO-DRAFT")
    if any(draft_lens) and target.build is not None and target.build.config.draft is None:
        raise InputError(f"{target.name} has no draft", "leave --draft-len out, or build with a draft", code="NO-DRAFT")
    most = target.build.config.max_draft_len if target.build is not None else None
    if most is not None and max(draft_lens, default=0) > most:
        raise InputError(
            f"{target.name} drafts at most {most} tokens, and {max(draft_lens)} are asked for",
            "give a smaller --draft-len, or build with a larger speculation.max_draft_len",
            code="SPEC-K",
        )


def refuse_llmapi(target: Target) -> None:
    """Raise InputError for a build, or an identified server, whose model takes no draft length and tells no token ids,
    only text."""
    if target.has_llmapi or (target.build is not None and target.build.config.backend == "llmapi"):
        raise InputError(
            f"{target.name} is served by NVIDIA's llmapi model, which takes no draft length and tells no token ids",
            "trtkit parity check compares its text; for the rest build with backend: engine",
            code="LLMAPI",
        )


def refuse_unserved(build: Build, num_processes: int) -> None:
    """Raise InputError when several processes are to ask a build that nobody serves: a server that one of them started
    would end with it."""
    if num_processes > 1 and find_running(ServerFolders(build.folder).state) is None:
        raise InputError(
            f"these tests run in {num_processes} processes, and only one can serve {build.folder}",
            "serve it first, with trtkit serve BUILD, or let one process run them",
            code="TESTS-PARALLEL",
        )


@contextmanager
def open_endpoint(target: Target, clock_ns: Callable[[], int], on_progress: OnProgress = silent) -> Iterator[Endpoint]:
    """The endpoint of a target, ready to answer; see open_address. Raises ServerError when its model is not there; the
    endpoint does when nothing comes any more."""
    patience = Patience(clock_ns)
    with _connected(target, patience.now_ns, on_progress) as endpoint, patience.limited(endpoint.close):
        yield PatientEndpoint(endpoint, patience)


@contextmanager
def _connected(
    target: Target, clock_ns: Callable[[], int], on_progress: OnProgress
) -> Iterator[OpenAiEndpoint | LlmApiEndpoint | TritonEndpoint]:
    if target.openai_url is not None:
        client = OpenAiClient(target.openai_url, timeout_s=_SOCKET_TIMEOUT_S)
        with closing(OpenAiEndpoint(client, clock_ns)) as completions:
            yield completions
        return
    with open_address(target, on_progress) as address:
        if target.has_llmapi:
            with closing(LlmApiEndpoint(address, clock_ns)) as foreign:
                yield foreign
            return
        with closing(TritonEndpoint(address, clock_ns)) as endpoint:
            endpoint.check_ready()
            yield endpoint


def identified(target: Target) -> Target:
    """The target with what serves it, by its build or as the server says. Raises ServerError when nobody answers."""
    if target.build is not None:
        return replace(target, has_llmapi=target.build.config.backend == "llmapi")
    if target.address is None:
        return target
    connection = Connection(target.address)
    try:
        ours = connection.is_ready(BLS, _TIMEOUT_S)
        return replace(target, has_llmapi=not ours and connection.is_ready(LLMAPI, _TIMEOUT_S))
    finally:
        connection.close()


@contextmanager
def open_own_address(target: Target, on_progress: OnProgress = silent) -> Iterator[str]:
    """open_address, for what trtkit's own models alone can be asked. Raises InputError where NVIDIA's answers."""
    refuse_llmapi(identified(target))
    with open_address(target, on_progress) as address:
        yield address


@contextmanager
def open_address(target: Target, on_progress: OnProgress = silent) -> Iterator[str]:
    """host:port of the server at the given address, of the one that serves the build now, or of one started for it.

    A server that was started here is stopped at the end. Raises ServerError and MissingToolError as the server does.
    """
    if target.openai_url is not None:
        raise InputError(f"{target.name} is no Triton server", "write grpc://host:port", code="URL")
    if target.address is not None:
        yield target.address
        return
    assert target.build is not None, "a target has a build or an address"
    with open_server(target.build, on_progress=on_progress) as address:
        yield address
