"""What the GPU suite needs around a build: its YAML, a server started by launch/serve.sh, the command line."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY_TIMEOUT_S = 900.0
_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Pair:
    """A target and a draft, as folders or hub ids."""

    name: str
    target: str
    draft: str


def pair_document(pair: Pair, backend: str, version: str, ports: tuple[int, int, int]) -> dict[str, Any]:
    """The build YAML of a pair on one GPU, in bfloat16: what every GPU from SM 80 on can build without calibration.

    The GPU is left out, so that the machine's own is taken.
    """
    http, grpc, metrics = ports
    return {
        "name": f"{pair.name}-{backend}",
        "backend": backend,
        "tensorrt_llm": version,
        "target": {"checkpoint": pair.target, "dtype": "bfloat16"},
        "draft": {"checkpoint": pair.draft, "dtype": "bfloat16"},
        "speculation": {"kind": "draft_target", "max_draft_len": 4},
        "kv_cache": {"dtype": "auto", "block_size": 32, "reuse": backend != "llmapi"},
        "limits": {"max_batch_size": 4, "max_input_len": 1024, "max_output_len": 256},
        "serving": {"streaming": True, "http_port": http, "grpc_port": grpc, "metrics_port": metrics},
    }


@contextlib.contextmanager
def served(build: Path, http_port: int, timeout_s: float = READY_TIMEOUT_S) -> Iterator[Path]:
    """Run BUILD/launch/serve.sh until the body ends; yields its log. mpirun and all it started are ended with it."""
    log = build / "logs" / "serve.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["sh", str(build / "launch" / "serve.sh")], stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _wait_until_ready(process, http_port, timeout_s, log)
            yield log
        finally:
            _stop(process)


def trtkit(*arguments: str, expect: int = 0) -> Any:
    """Run `trtkit ... --json` and return its result."""
    command = [sys.executable, "-P", "-m", "trtkit", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == expect, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout)


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, timeout_s: float, log: Path) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        code = process.poll()
        assert code is None, f"the server ended with {code}:\n{_tail(log)}"
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=2) as answer:
                if answer.status == 200:
                    return
        time.sleep(0.2)
    raise AssertionError(f"the server was not ready after {timeout_s:g} s:\n{_tail(log)}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM to the process group, SIGKILL to what is left of it."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT_S)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])
