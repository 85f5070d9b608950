"""BUILD or URL, and where a build is to be served."""

import json
from pathlib import Path

import pytest
from trtkit.builds import SCHEMA, Build, open_build
from trtkit.errors import InputError
from trtkit.server.connection import Address, endpoints_of, open_address, parse_address
from trtkit.server.launch import ServerOptions


@pytest.fixture
def build(tmp_path: Path) -> Build:
    config = {"name": "b", "target": {"checkpoint": "t"}, "serving": {"http_port": 81, "grpc_port": 82}}
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": SCHEMA, "config": config}))
    return open_build(tmp_path)


def test_a_url_is_an_address_and_anything_else_a_folder() -> None:
    assert parse_address("grpc://host:8001") == Address("grpc", "host:8001")
    assert parse_address("http://host:8000/") == Address("http", "host:8000")
    assert parse_address("build/demo") is None


@pytest.mark.parametrize("url", ["ftp://host:8000", "grpc://host", "grpc://:8001", "grpc://host:port"])
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


def test_a_folder_that_is_no_build_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="BUILD-MISSING"), open_address(str(tmp_path), ServerOptions()):
        pass
