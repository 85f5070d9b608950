"""The figures of `trtkit bench` against those of aiperf and of Triton, on the same server and under the same load.

    python3.11 -m venv aiperf && aiperf/bin/pip install aiperf==0.13.0     # an environment of its own: it needs numpy 2
    taskset -c 0 trtkit serve build/smollm2-spec --http-port 0 --grpc-port 0 --metrics-port 0 &
    PYTHONPATH=tests taskset -c 1 python tests/bench/bench_aiperf.py build/smollm2-spec --aiperf aiperf/bin/aiperf

The server has a core of its own: aiperf's processes work on the answers of earlier requests while the next ones run,
and where they take the server's time they measure themselves.

aiperf goes through Triton's HTTP (generate_stream, server-sent events), trtkit through gRPC. The two take turns, trtkit
first and last, so that a drift of the machine cancels. The prompts are the same: long ones, since of a short one's
first token a program's own milliseconds are a large part, with a number before them that makes every one new to the
server's prefix cache. Answers have three lengths, so that requests that start together do not stay together.
Speculation is off, so that a response is a token. Both mean the same by these figures, but for what a token is: aiperf
tokenizes the answer's text and sees no end token. Prompts whose answer ends early are left out beforehand, and
`output_tokens` says what is left of it. Medians are compared, since a busy machine delays some requests much, and the
means of whole requests.

Triton's own statistics are those of trtkit's turns: requests and tokens by its counters; latency of the `ensemble`
alone, since of a model that hands requests to a thread, as the BLS model does, they hold the handing over. Exit code 1
when a figure differs by more than the tolerance.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aiperf_program import AiperfRun, run_aiperf
from ensemble_endpoint import EnsembleEndpoint
from trtkit.builds import Build, open_build
from trtkit.evaluate.bench.latency import summarize_run
from trtkit.evaluate.bench.load import Timer
from trtkit.evaluate.bench.plan import BenchPrompt, Load, measure_load, tag_prompt
from trtkit.evaluate.bench.prompts import bench_prompts
from trtkit.evaluate.bench.traffic import prompts_jsonl
from trtkit.evaluate.endpoints.asynchronous import AsyncTritonEndpoint
from trtkit.evaluate.endpoints.endpoint import Answered
from trtkit.evaluate.oracle.record_choice import PromptChoice
from trtkit.server.endpoints import Endpoints
from trtkit.server.launch import ServerFolders
from trtkit.server.state import find_running
from trtkit.serving.contract import BLS, ENSEMBLE

# Ours -> aiperf's name of the same figure, and which of its values.
FIGURES = {
    "ttft_ms p50": ("time_to_first_token", "p50"),
    "tpot_ms p50": ("inter_token_latency", "p50"),
    "e2e_ms p50": ("request_latency", "p50"),
    "e2e_ms mean": ("request_latency", "avg"),
    "tokens_per_s": ("output_token_throughput", "avg"),
    "requests_per_s": ("request_throughput", "avg"),
    "output_tokens": ("output_sequence_length", "sum"),
}
Figures = Mapping[str, float]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Site:
    """The served build, the model that is asked, and how many requests are under way."""

    build: Build
    endpoints: Endpoints
    model: str
    concurrency: int

    async def answers(self, prompts: tuple[BenchPrompt, ...]) -> tuple[list[Answered], int]:
        timer = Timer(time.perf_counter_ns)
        address = self.endpoints.grpc
        opened = (
            EnsembleEndpoint(address, self.build.config.tensorrt_llm)
            if self.model == ENSEMBLE
            else AsyncTritonEndpoint(address, timer.now_ns)
        )
        async with opened as endpoint:
            return await measure_load(endpoint, Load("target", 0, self.concurrency), prompts, timer)

    def _fetch(self, port: int, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return str(answer.read().decode())

    def counters(self) -> dict[str, float]:
        """Triton's statistics of the model, once they have come to rest, and the tokens that its metrics count."""
        before: dict[str, float] = {}
        while True:
            stats = json.loads(self._fetch(self.endpoints.http_port, f"/v2/models/{self.model}/stats"))
            found = dict(stats["model_stats"][0]["inference_stats"]["success"])
            if found == before:
                break
            before = found
            time.sleep(0.5)
        lines = self._fetch(self.endpoints.metrics_port, "/metrics").splitlines()
        tokens = [line.split()[-1] for line in lines if line.startswith(f'trtkit_output_tokens{{model="{self.model}"')]
        return {**found, "tokens": float(tokens[0]) if tokens else 0.0}


def measure_trtkit(site: Site, prompts: tuple[BenchPrompt, ...]) -> tuple[Figures, Figures]:
    """Our figures, and Triton's of the same requests."""
    before = site.counters()
    answers, busy_ns = asyncio.run(site.answers(prompts))
    after = site.counters()
    grown = {key: after[key] - before[key] for key in after}
    stats = summarize_run(answers, busy_ns)
    assert stats is not None and stats.tpot_ms is not None, "no answer had two tokens"
    ours = {
        "ttft_ms p50": stats.ttft_ms.p50,
        "tpot_ms p50": stats.tpot_ms.p50,
        "e2e_ms p50": stats.e2e_ms.p50,
        "e2e_ms mean": stats.e2e_ms.mean,
        "tokens_per_s": stats.tokens_per_s,
        "requests_per_s": stats.requests_per_s,
        "output_tokens": float(stats.num_tokens),
    }
    assert grown["count"] == stats.num_requests, "somebody else is asking this server too"
    tritons = {"output_tokens": grown["tokens"]} if site.model == BLS else {}
    if site.model == ENSEMBLE:
        tritons = {"e2e_ms mean": grown["ns"] / grown["count"] / 1e6}
    return ours, tritons


def measure_aiperf(program: str, site: Site, prompts: tuple[BenchPrompt, ...]) -> Figures:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # Two requests more, to connect and to load what it loads late; they are not counted.
        extra = tuple(replace(prompt, text=f"warm-up {prompt.text}") for prompt in prompts[: site.concurrency])
        (folder / "prompts.jsonl").write_text(prompts_jsonl((*extra, *prompts)), encoding="utf-8")
        run = AiperfRun(
            f"http://127.0.0.1:{site.endpoints.http_port}",
            site.model,
            site.build.tokenizer.resolve(),
            folder / "prompts.jsonl",
            len(prompts),
            site.concurrency,
            num_warmups=len(extra),
        )
        result = run_aiperf(program, run, folder)
    asked = [(prompt.text, prompt.max_new_tokens) for prompt in prompts]
    assert result.prompts == asked, "aiperf did not send the prompts that it was given"
    return {ours: float(result.summary[name][value]) for ours, (name, value) in FIGURES.items()}


def tagged(prompts: tuple[BenchPrompt, ...], tags: "itertools.count[int]") -> tuple[BenchPrompt, ...]:
    return tuple(tag_prompt(prompt, next(tags)) for prompt in prompts)


def with_whole_answers(site: Site, given: argparse.Namespace, tags: "itertools.count[int]") -> tuple[BenchPrompt, ...]:
    """The prompts whose answers run to the full length, repeated to the number of requests, of three lengths."""
    choice = PromptChoice(limit=given.prompts, group=given.group, max_new_tokens=given.tokens)
    prompts, _ = bench_prompts(site.build, choice, given.prompts)
    answers, _ = asyncio.run(site.answers(tagged(prompts, tags)))
    counts = [sum(arrival.num_tokens for arrival in each.generation.arrivals) for each in answers]
    whole = [prompt for prompt, count in zip(prompts, counts, strict=True) if count == given.tokens]
    assert whole, "every answer ends early; ask for fewer --tokens"
    lengths = [given.tokens, given.tokens * 3 // 4, given.tokens // 2]
    return tuple(
        replace(whole[number % len(whole)], max_new_tokens=lengths[number % len(lengths)])
        for number in range(given.requests)
    )


def compare(
    site: Site, given: argparse.Namespace, prompts: tuple[BenchPrompt, ...], tags: "itertools.count[int]"
) -> float:
    """Print the table of one model; the largest difference."""
    ours, tritons, theirs = [], [], []
    for turn in range(2 * given.turns + 1):
        if turn % 2:
            theirs.append(measure_aiperf(given.aiperf, site, tagged(prompts, tags)))
        else:
            own, triton = measure_trtkit(site, tagged(prompts, tags))
            ours.append(own)
            tritons.append(triton)
    say(f"{site.model}: {given.requests} requests a turn, concurrency {site.concurrency}")
    say(f"  {'figure':16}{'trtkit':>10}{'aiperf':>10}{'':>9}{'Triton':>10}")
    worst = 0.0
    for name in FIGURES:
        own = statistics.fmean(run[name] for run in ours)
        others = [statistics.fmean(run[name] for run in runs) for runs in (theirs, tritons) if name in runs[0]]
        differences = [own / other - 1 for other in others]
        worst = max(worst, *map(abs, differences))
        cells = (f"{other:10.2f}{gap:9.1%}" for other, gap in zip(others, differences, strict=True))
        say(f"  {name:16}{own:10.2f}{''.join(cells)}")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--aiperf", default="aiperf")
    parser.add_argument("--concurrency", type=int, action="append", help="1 when left out; may be repeated")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--group", default="long", help="the class of prompts: short, long, code, ...")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--model", action="append", choices=[BLS, ENSEMBLE])
    parser.add_argument("--tolerance", type=float, default=0.05)
    given = parser.parse_args()
    build = open_build(given.build)
    server = find_running(ServerFolders(build.folder).state)
    if server is None:
        sys.exit(f"nobody serves {given.build}: start trtkit serve {given.build} first")
    tags = itertools.count()
    prompts = with_whole_answers(Site(build, server.endpoints, BLS, 1), given, tags)
    sites = [
        Site(build, server.endpoints, model, concurrency)
        for concurrency in given.concurrency or (1,)
        for model in given.model or (BLS, ENSEMBLE)
    ]
    worst = max(compare(site, given, prompts, tags) for site in sites)
    say(f"largest difference {worst:.1%}, allowed {given.tolerance:.0%}")
    return int(worst > given.tolerance)


if __name__ == "__main__":
    sys.exit(main())
