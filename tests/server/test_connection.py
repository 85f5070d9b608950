"""BUILD or URL, and where a build is to be served."""

import json
import re
from pathlib import Path

import pytest
from trtkit.builds import SCHEMA, Build, open_build
from trtkit.errors import InputError
from trtkit.server.connection import Address, endpoints_of, open_address, parse_address
from trtkit.server.endpoints import local_address
from trtkit.server.launch import ServerOptions


@pytest.fixture
def build(tmp_path: Path) -> Build:
    config = {"name": "b", "target": {"checkpoint": "t"}, "serving": {"http_port": 81, "grpc_port": 82}}
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": SCHEMA, "config": config}))
    return open_build(tmp_path)


def test_a_url_is_an_address_and_anything_else_a_folder() -> None:
    assert parse_address("grpc://host:8001") == Address("grpc", "host:8001")
    assert parse_address("http://host:8000/") == Address("http", "host:8000")
    assert parse_address("grpc://[::1]:8001") == Address("grpc", "[::1]:8001")
    assert parse_address("build/demo") is None


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host:8000", "grpc://host", "grpc://:8001", "grpc://host:port", "grpc://", "http:///h:1"),
        *(
            "http://host:99999",
            "http://host:0",
            "http://ho st:1",
            "http://me@host:1",
            "http://host:1/v2",
            "grpc://::1:1",
        ),
        *("grpc://[::1:1", "grpc://host:-1", "grpc://host:1?a=b", "http://ho\x01st:1", "http://host:\u00b2"),
    ],
)
def test_another_kind_of_url_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="write grpc://host:port"):
        parse_address(url)


def test_ports_come_from_the_build_unless_given(build: Build) -> None:
    endpoints = endpoints_of(build, {"http": None, "grpc": 99, "metrics": None})
    assert (endpoints.http_port, endpoints.grpc_port, endpoints.metrics_port) == (81, 99, 8002)


def test_port_0_is_replaced_by_a_free_one(build: Build) -> None:
    endpoints = endpoints_of(build, {"http": 0, "grpc": 0, "metrics": 0})
    assert len({0, 81, 82, *endpoints.ports.values()}) == 6


def test_equal_ports_are_refused(build: Build) -> None:
    with pytest.raises(InputError, match="must differ"):
        endpoints_of(build, {"http": 99, "grpc": 99})


def test_the_ports_of_a_server_elsewhere_are_taken_as_they_are(build: Build) -> None:
    assert endpoints_of(build, {"http": 1, "grpc": 2, "metrics": 3}, "203.0.113.5").grpc == "203.0.113.5:2"


def test_a_server_listens_on_the_address_of_a_name() -> None:
    assert local_address("localhost") == "127.0.0.1"
    assert local_address("0.0.0.0") == "0.0.0.0"


@pytest.mark.parametrize("host", ["nowhere.invalid", "::1", "203.0.113.5", ".", "a" * 70 + ".b"])
def test_a_server_does_not_listen_on_what_is_not_this_machine(host: str) -> None:
    with pytest.raises(InputError, match=f"HOST: cannot listen on {re.escape(host)}: "):
        local_address(host)


def test_a_folder_that_is_no_build_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="BUILD-MISSING"), open_address(str(tmp_path), ServerOptions()):
        pass
