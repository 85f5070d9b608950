"""The exported vllm serve command, run: it serves the demo pair with its draft on a CPU.

Needs a vLLM with kernels for a CPU, whose packages are not trtkit's: TRTKIT_VLLM names its `vllm` program. Start-up
takes two to three minutes, most of it compilation.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from trtkit.config.load import load_config
from trtkit.config.presets import presets
from trtkit.export.vllm import export_vllm

PROGRAM = os.environ.get("TRTKIT_VLLM")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.demo,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PROGRAM is None, reason="TRTKIT_VLLM names no vllm program"),
]
READY_S = 600
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


@contextlib.contextmanager
def served(command: list[str], log: Path, port: int) -> Iterator[str]:
    """The base URL of a server that runs until the body ends; its whole process group is ended with it."""
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | ENVIRONMENT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + READY_S
        while not is_healthy(url):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
            time.sleep(1)
        yield url
    finally:
        for kind in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, kind)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def complete(url: str, prompt: str) -> str:
    model = json.loads(get(f"{url}/v1/models"))["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        text: str = json.loads(answer.read())["choices"][0]["text"]
        return text


def test_the_exported_command_serves_the_demo_pair_with_its_draft(demo_pair: dict[str, Path], tmp_path: Path) -> None:
    assert PROGRAM is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = load_config(presets()["smollm2_spec"], [f"serving.http_port={port}"])
    text = export_vllm(config, checkpoints={role: str(folder) for role, folder in demo_pair.items()}).text
    command = [PROGRAM, *shlex.split(text.replace("\\\n", " "))[1:], "--host", "127.0.0.1"]
    with served(command, tmp_path / "vllm.log", port) as url:
        assert complete(url, "The capital of France is").startswith(" Paris")
        drafted = re.search(r"^vllm:spec_decode_num_draft_tokens_total\{.*\} ([\d.]+)$", get(f"{url}/metrics"), re.M)
    assert drafted is not None and float(drafted.group(1)) > 0
