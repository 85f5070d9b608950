"""Addresses at which something answers that is no Triton server, or speaks the other protocol, or nothing at all."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from click.testing import CliRunner
from hostile_servers import kserve_server
from trtkit.cli.main import cli
from trtkit.client.http_client import HttpClient
from trtkit.client.triton_client import TritonClient
from trtkit.errors import ServerError
from trtkit.serving import kserve


@contextmanager
def silent() -> Iterator[str]:
    """Takes connections, as `nc -l` does, and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def leaving() -> Iterator[str]:
    """Takes connections and closes them, as Triton's HTTP port does with gRPC."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        listening.settimeout(0.05)
        ends = threading.Event()

        def close_all() -> None:
            while not ends.is_set():
                with contextlib.suppress(TimeoutError):
                    listening.accept()[0].close()

        thread = threading.Thread(target=close_all, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        ends.set()
        thread.join()


@contextmanager
def web_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Nothing) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Nothing(BaseHTTPRequestHandler):
    """Answers every GET, and no POST: as Triton's metrics port does."""

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.send_response(405)
        self.end_headers()
        self.wfile.write(b'{"error":"Method Not Allowed"}')


@contextmanager
def other_grpc_server() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait(10)


def test_grpc_to_a_silent_port_ends_and_says_that_nothing_speaks_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = [(name, 500 if "backoff" in name else value) for name, value in kserve.CHANNEL_OPTIONS]
    monkeypatch.setattr(kserve, "CHANNEL_OPTIONS", tuple(limited))
    with (
        silent() as address,
        TritonClient(address, timeout_s=30) as client,
        pytest.raises(ServerError, match=f"SERVER-UNREACHABLE: nothing at {address} speaks gRPC"),
    ):
        client.check_ready()


def test_a_port_is_known_to_be_silent_before_the_clients_own_time_is_over() -> None:
    assert dict(kserve.CHANNEL_OPTIONS)["grpc.min_reconnect_backoff_ms"] < 10_000


@pytest.mark.parametrize("client_class", [TritonClient, HttpClient])
def test_a_question_without_an_answer_ends_and_says_nothing_of_tokens(client_class: type) -> None:
    with silent() as address, client_class(address, timeout_s=0.3) as client:
        with pytest.raises(ServerError, match=r"SERVER-UNREACHABLE: .* within 0\.3 s") as raised:
            client.check_ready()
        assert "tokens" not in raised.value.fix


@pytest.mark.parametrize(
    ("peer", "scheme", "message"),
    [
        (web_server, "grpc", "nothing at {} speaks gRPC"),
        (web_server, "http", "what answers at {} is not Triton's HTTP port; it says: Method Not Allowed"),
        (leaving, "grpc", "nothing at {} speaks gRPC"),
        (leaving, "http", "no Triton server answers at {}"),
        (other_grpc_server, "grpc", "what speaks gRPC at {} is no Triton server"),
        (other_grpc_server, "http", "what answers at {} does not speak HTTP"),
    ],
)
def test_the_wrong_protocol_is_said_at_once(peer, scheme: str, message: str) -> None:  # type: ignore[no-untyped-def]
    with peer() as address:
        result = CliRunner().invoke(cli, ["generate", f"{scheme}://{address}", "hello"])
    assert result.exit_code == 4, result.exception
    assert f"SERVER-UNREACHABLE: {message.format(address)}" in result.stderr
    assert result.stderr.replace("\n", "").isprintable()


def test_the_grpc_port_of_a_triton_server_as_http_is_told_from_its_http_port() -> None:
    with kserve_server([]) as url:
        result = CliRunner().invoke(cli, ["generate", url.replace("grpc:", "http:"), "hello"])
    assert result.exit_code == 4, result.exception
    assert "does not speak HTTP" in result.stderr and "as grpc://host:port" in result.stderr


@pytest.mark.parametrize("host", ["a" * 70 + ".b", "nowhere.invalid", "\u00e9" * 70])
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_host_that_no_name_server_knows_is_said(scheme: str, host: str) -> None:
    result = CliRunner().invoke(cli, ["generate", f"{scheme}://{host}:8000", "hello"])
    assert result.exit_code == 4, result.exception
    assert "SERVER-UNREACHABLE: " in result.stderr
