"""The figures of `trtkit bench` against those of aiperf, on the same server, prompts, lengths and concurrency.

    python3.11 -m venv aiperf && aiperf/bin/pip install aiperf==0.13.0     # an environment of its own: it needs numpy 2
    trtkit serve build/smollm2-spec &
    python tests/bench/bench_aiperf.py build/smollm2-spec --aiperf aiperf/bin/aiperf

aiperf goes through Triton's HTTP (generate_stream of the BLS model, server-sent events), trtkit through gRPC. The two
take turns, trtkit first and last, so that a drift of the machine cancels. Speculation is off: aiperf counts a response
as a token's arrival, and a response of several tokens has one time. Prompts are warm in both. Exit code 1 when a figure
differs by more than the tolerance.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trtkit.builds import Build, open_build
from trtkit.evaluate.async_endpoints import AsyncTritonEndpoint
from trtkit.evaluate.bench import BenchPrompt, Load, measure_load
from trtkit.evaluate.bench_prompts import bench_prompts
from trtkit.evaluate.latency import RunStats, summarize_run
from trtkit.evaluate.load import Timer
from trtkit.evaluate.record_choice import PromptChoice
from trtkit.evaluate.traffic import prompts_jsonl
from trtkit.server.launch import ServerFolders
from trtkit.server.state import RunningServer, find_running
from trtkit.serving.contract import BLS

TEMPLATE = '{"text_input": {{ text|tojson }}, "max_tokens": %d, "stream": true, "num_draft_tokens": 0}'
# Ours -> aiperf's name of the same figure.
FIGURES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "inter_token_latency",
    "e2e_ms": "request_latency",
    "tokens_per_s": "output_token_throughput",
    "requests_per_s": "request_throughput",
}


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def measure_trtkit(address: str, prompts: tuple[BenchPrompt, ...], concurrency: int) -> dict[str, float]:
    async def run() -> RunStats | None:
        timer = Timer(time.perf_counter_ns)
        async with AsyncTritonEndpoint(address, timer.now_ns) as endpoint:
            return summarize_run(*await measure_load(endpoint, Load("target", 0, concurrency), prompts, timer))

    stats = asyncio.run(run())
    assert stats is not None and stats.tpot_ms is not None, "no answer had two tokens"
    return {
        "ttft_ms": stats.ttft_ms.mean,
        "tpot_ms": stats.tpot_ms.mean,
        "e2e_ms": stats.e2e_ms.mean,
        "tokens_per_s": stats.tokens_per_s,
        "requests_per_s": stats.requests_per_s,
    }


def measure_aiperf(program: str, server: RunningServer, build: Build, given: argparse.Namespace) -> dict[str, float]:
    prompts = bench_prompts(build, PromptChoice(limit=given.prompts, max_new_tokens=given.tokens), given.requests)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        (out / "prompts.jsonl").write_text(prompts_jsonl(prompts), encoding="utf-8")
        (out / "payload.jinja").write_text(TEMPLATE % given.tokens, encoding="utf-8")
        command = [program, "profile", "-m", BLS, "--endpoint-type", "template", "--streaming", "--ui", "none"]
        command += ["--url", f"http://127.0.0.1:{server.endpoints.http_port}", "--no-gpu-telemetry"]
        command += ["--custom-endpoint", f"/v2/models/{BLS}/generate_stream"]
        command += ["--tokenizer", str(build.tokenizer.resolve())]
        command += ["--extra-inputs", f"payload_template:{out / 'payload.jinja'}"]
        command += ["--extra-inputs", "response_field:text_output"]
        command += ["--input-file", str(out / "prompts.jsonl"), "--custom-dataset-type", "single_turn"]
        command += ["--dataset-sampling-strategy", "sequential"]
        command += ["--concurrency", str(given.concurrency), "--request-count", str(given.requests)]
        command += ["--output-artifact-dir", str(out / "artifacts")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        reports = list((out / "artifacts").rglob("profile_export_aiperf.json"))
        if done.returncode or not reports:
            sys.exit(f"aiperf failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        document: dict[str, Any] = json.loads(reports[0].read_text(encoding="utf-8"))
    return {ours: float(document[name]["avg"]) for ours, name in FIGURES.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--aiperf", default="aiperf")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--tolerance", type=float, default=0.05)
    given = parser.parse_args()
    build = open_build(given.build)
    server = find_running(ServerFolders(build.folder).state)
    if server is None:
        sys.exit(f"nobody serves {given.build}: start trtkit serve {given.build} first")
    prompts = bench_prompts(build, PromptChoice(limit=given.prompts, max_new_tokens=given.tokens), given.requests)
    measure_trtkit(server.endpoints.grpc, prompts, given.concurrency)  # fills the prefix cache
    ours, theirs = [measure_trtkit(server.endpoints.grpc, prompts, given.concurrency)], []
    for _ in range(given.turns):
        theirs.append(measure_aiperf(given.aiperf, server, build, given))
        ours.append(measure_trtkit(server.endpoints.grpc, prompts, given.concurrency))
    return compare(ours, theirs, given.tolerance)


def compare(ours: list[dict[str, float]], theirs: list[dict[str, float]], tolerance: float) -> int:
    say(f"{'figure':16}{'trtkit':>10}{'aiperf':>10}{'difference':>12}")
    worst = 0.0
    for name in FIGURES:
        one, other = (statistics.fmean(run[name] for run in runs) for runs in (ours, theirs))
        difference = one / other - 1
        worst = max(worst, abs(difference))
        say(f"{name:16}{one:10.2f}{other:10.2f}{difference:12.1%}")
    say(f"largest difference {worst:.1%}, allowed {tolerance:.0%}")
    return int(worst > tolerance)


if __name__ == "__main__":
    sys.exit(main())
