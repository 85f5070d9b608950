"""The parts of the GPU suite that need no GPU: its YAML is valid, its server handling starts, waits and ends."""

import os
import socket
import sys
import time
from pathlib import Path

import pytest
from gpu_deployment import Pair, pair_document, served
from known_models import fill_cache
from trtkit.config.load import parse_config
from trtkit.engines.release import releases
from trtkit.pipeline.dry_run import dry_run
from trtkit.pipeline.run import BuildOptions

LLAMA = Pair("llama", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct")
SERVER = """
import http.server, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""


@pytest.mark.parametrize("version", [release.version for release in releases() if release.build])
@pytest.mark.parametrize("backend", ["engine", "llmapi"])
def test_the_suites_yaml_builds_for_every_release(tmp_path: Path, version: str, backend: str) -> None:
    if backend == "llmapi" and version.startswith("0."):
        pytest.skip("the LLM API came with 1.0")
    config = parse_config(pair_document(LLAMA, backend, version, (8000, 8001, 8002)), where="pair.yaml")
    planned = dry_run(config, BuildOptions(cache=fill_cache(tmp_path), where="pair.yaml"))
    assert planned[-1].stage == "launch" and "serve.sh" in planned[-1].files


def build_with(folder: Path, script: str) -> Path:
    (folder / "launch").mkdir(parents=True)
    (folder / "launch" / "serve.sh").write_text(script)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_is_waited_for_and_ended_with_everything_it_started(tmp_path: Path) -> None:
    port, children = free_port(), tmp_path / "pid"
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    build = build_with(tmp_path / "build", f"sleep 300 & echo $! > {children}\n{sys.executable} {program} {port}\n")
    with served(build, port, timeout_s=30):
        child = int(children.read_text())
        os.kill(child, 0)
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie that nobody has waited for yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    build = build_with(tmp_path / "build", "echo it cannot load; exit 3\n")
    with pytest.raises(AssertionError, match=r"ended with 3:\s+it cannot load"):
        with served(build, free_port(), timeout_s=30):
            pass
