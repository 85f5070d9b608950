"""`trtkit serve --attach` and --follow against a real server that somebody else runs."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_build import copy_build
from trtkit.cli.main import cli
from trtkit.client.completion import collect
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.errors import ServerError
from trtkit.server.attached import AttachedServer
from trtkit.server.endpoints import free_endpoints
from trtkit.server.launch import ServerOptions
from trtkit.server.triton_server import TritonServer

pytestmark = pytest.mark.tritonserver


def port_options(server: TritonServer) -> list[str]:
    return [word for name, port in server.endpoints.ports.items() for word in (f"--{name}-port", str(port))]


@contextmanager
def serving(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-P", "-m", "trtkit", "serve", *arguments, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_attaching_announces_follows_and_leaves_the_server_running(
    build: Path, server: TritonServer, client: TritonClient
) -> None:
    with serving(str(build), "--attach", *port_options(server), "--follow", "0.2") as process:
        assert process.stdout is not None and process.stderr is not None
        lines = [process.stdout.readline()]
        while lines[-1] and lines[-1].rstrip() != "}":
            lines.append(process.stdout.readline())
        document = json.loads("".join(lines))
        assert document["grpc"] == f"grpc://{server.endpoints.grpc}" and document["pid"] is None
        collect(client.generate(GenerateRequest("hello", 24)), lambda _: None)
        line = process.stderr.readline()
        assert "1 answers" in line and "of drafts accepted, draft length" in line and "reused" in line
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert "left" in process.stderr.read()
    client.check_ready()


def test_a_server_without_the_builds_models_is_named(build: Path, server: TritonServer, tmp_path: Path) -> None:
    other = copy_build(build, tmp_path / "other")
    (other / "model_repository" / "ensemble").rename(other / "model_repository" / "my_ensemble")
    with pytest.raises(ServerError, match=r"(?s)MODEL-NOT-READY: .*has not loaded my_ensemble"):
        AttachedServer(other, server.endpoints, timeout_s=0.1).check_ready()


def test_a_server_of_another_build_is_refused_with_the_first_difference(
    build: Path, server: TritonServer, tmp_path: Path
) -> None:
    AttachedServer(build, server.endpoints, timeout_s=1).check_ready()
    other = copy_build(build, tmp_path / "other")
    config = other / "model_repository" / "tensorrt_llm_bls" / "config.pbtxt"
    before, key, after = config.read_text().partition('key: "max_draft_len"')
    config.write_text(before + key + after.replace('string_value: "4"', 'string_value: "3"', 1))
    with pytest.raises(ServerError, match=r"SERVER-BUILD: .* tensorrt_llm_bls: parameter max_draft_len is '4' there"):
        AttachedServer(other, server.endpoints, timeout_s=1).check_ready()


@pytest.mark.parametrize("url", ["grpc://127.0.0.1:8001", "http://127.0.0.1:8000"])
def test_serving_an_address_says_what_to_do_with_it(url: str) -> None:
    result = CliRunner().invoke(cli, ["serve", url])
    assert result.exit_code == 2
    assert f"SERVE-URL: {url} is a server that runs already" in result.stderr
    assert f"trtkit generate {url} PROMPT" in result.stderr


def test_nobody_there_is_an_error_and_so_is_a_server_that_goes(build: Path, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="SERVER-UNREACHABLE"):
        AttachedServer(build, free_endpoints(), timeout_s=0.1).check_ready()
    other = copy_build(build, tmp_path / "other")
    with TritonServer(other, options=ServerOptions(load_timeout_s=60, num_threads=1)) as server:
        attached = AttachedServer(other, server.endpoints)
        attached.check_ready()
        assert not attached.wait(0.1)
    with pytest.raises(ServerError, match="SERVER-UNREACHABLE"):
        attached.wait(30)


@pytest.mark.parametrize("options", [["--attach", "--container"], ["--attach", "--grpc-port", "0"]])
def test_choices_that_exclude_each_other_are_refused(build: Path, options: list[str]) -> None:
    result = CliRunner().invoke(cli, ["serve", str(build), *options])
    assert result.exit_code == 2
    assert "SERVE-OPTION" in result.stderr
