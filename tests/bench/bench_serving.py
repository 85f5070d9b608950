"""What Triton and the BLS model add to the reference engine, at batch 1 with speculation, on the demo pair.

    python tests/bench/bench_serving.py BUILD                  # a finished build of build_configs/smollm2_spec.yaml
    python tests/bench/bench_serving.py BUILD --runs 9 --draft-len 0
    python tests/bench/bench_serving.py BUILD --tokens 1 --runs 20      # what the first token costs

The same checkpoints answer the same prompts twice: through the engines of this process, called directly, and through a
real server over gRPC. They take turns, so that a busy moment of the machine hits both; every prompt is new to both, so
that neither finds it in its cache. TTFT is the time to the first tokens. Medians over all answers; "overhead" is served
over direct, minus one, of the whole answer's time per token. CPU time is that of every process, the client's included,
over all answers: unlike the times of the clock it hardly depends on what else the machine does.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from trtkit.client.completion import collect
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.engines.inspect import read_engine
from trtkit.reference.engine import Engine
from trtkit.reference.request import GenerationRequest
from trtkit.server.launch import ServerOptions
from trtkit.server.processes import stubs_of
from trtkit.server.triton_server import TritonServer
from trtkit.serving.text import TextTokenizer

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a king who",
    "Water boils at one hundred degrees because",
    "The best way to learn a language is",
)


@dataclass(frozen=True)
class Timing:
    """One answer: milliseconds to its first tokens, and to its end; cpu_ms of all processes."""

    token_ids: tuple[int, ...]
    ttft_ms: float
    total_ms: float
    cpu_ms: float

    @property
    def ms_per_token(self) -> float:
        """Of the whole answer, the first tokens included."""
        return self.total_ms / len(self.token_ids)


Measure = Callable[[str], Timing]


def load_engine(build: Path, role: str, num_threads: int) -> Engine:
    info = read_engine(build / "engines" / role)
    assert info.checkpoint is not None
    return Engine.load(info.checkpoint, max_batch_size=1, max_seq_len=1024, num_threads=num_threads)


def proposed(draft: Engine, request: GenerationRequest, draft_len: int) -> tuple[int, ...]:
    """What the draft would say next; one token of the answer is left to the target."""
    wanted = min(draft_len, request.max_new_tokens - 1)
    outputs = draft.generate(replace(request, max_new_tokens=wanted)) if wanted else []
    return tuple(token for output in outputs for token in output.token_ids)


def verified(target: Engine, request: GenerationRequest, draft_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The step that verifies the draft, and none after it, as in a server."""
    target.submit(replace(request, draft_ids=draft_ids, max_new_tokens=len(draft_ids) + 1))
    tokens: tuple[int, ...] = ()
    while not tokens:
        tokens = tuple(token for output in target.step() for token in output.token_ids)
    target.cancel(request.request_id)
    while target.has_work:
        target.step()
    return tokens


def measure_direct(target: Engine, draft: Engine, tokenizer: TextTokenizer, draft_len: int, num_tokens: int) -> Measure:
    """The draft-target loop on two engines of this process: nothing between the rounds."""

    def measure(text: str) -> Timing:
        start = time.perf_counter()
        prompt = tuple(tokenizer.encode(text, add_special_tokens=True))
        whole = GenerationRequest("bench", prompt, num_tokens)
        tokens: list[int] = []
        first_s = 0.0
        while len(tokens) < num_tokens:
            rest = replace(whole, prompt_ids=prompt + tuple(tokens), max_new_tokens=num_tokens - len(tokens))
            tokens += verified(target, rest, proposed(draft, rest, draft_len))
            first_s = first_s or time.perf_counter()
        return Timing(tuple(tokens), (first_s - start) * 1e3, (time.perf_counter() - start) * 1e3, 0.0)

    return measure


def measure_plain(target: Engine, tokenizer: TextTokenizer, num_tokens: int) -> Measure:
    """The target alone, step by step."""

    def measure(text: str) -> Timing:
        start = time.perf_counter()
        prompt = tuple(tokenizer.encode(text, add_special_tokens=True))
        target.submit(GenerationRequest("bench", prompt, num_tokens))
        tokens: list[int] = []
        first_s = 0.0
        while target.has_work:
            tokens += [token for output in target.step() for token in output.token_ids]
            first_s = first_s or (time.perf_counter() if tokens else 0.0)
        return Timing(tuple(tokens), (first_s - start) * 1e3, (time.perf_counter() - start) * 1e3, 0.0)

    return measure


def measure_served(client: TritonClient, draft_len: int, num_tokens: int) -> Measure:
    def measure(text: str) -> Timing:
        request = GenerateRequest(text, num_tokens, num_draft_tokens=draft_len, deadline_s=120)
        answer = collect(client.generate(request), lambda _: None)
        return Timing(answer.token_ids, answer.ttft_ms, answer.total_ms, 0.0)

    return measure


def with_cpu_time(measure: Measure, cpu_s: Callable[[], float]) -> Measure:
    def measured(text: str) -> Timing:
        before = cpu_s()
        timing = measure(text)
        return replace(timing, cpu_ms=(cpu_s() - before) * 1e3)

    return measured


def cpu_of(server: TritonServer) -> Callable[[], float]:
    """CPU seconds so far of this process, the server and its models."""
    processes = [psutil.Process(pid) for pid in (server.pid, *(stub.pid for stub in stubs_of(server.shm_prefix)))]

    def total() -> float:
        times = (process.cpu_times() for process in processes)
        return time.process_time() + sum(each.user + each.system for each in times)

    return total


def take_turns(direct: Measure, served: Measure, num_runs: int, num_tokens: int) -> tuple[list[Timing], list[Timing]]:
    """Answers that end early are left out: they would be compared with longer ones."""
    found: tuple[list[Timing], list[Timing]] = ([], [])
    for run in range(num_runs + 1):
        for prompt in PROMPTS:
            text = f"Note {run + 10}. {prompt}"
            pair = direct(text), served(text)
            if run == 0 or len(pair[1].token_ids) < num_tokens:
                continue  # the first run warms up
            for side, timing in zip(found, pair, strict=True):
                side.append(timing)
    return found


def report(direct: list[Timing], served: list[Timing]) -> None:
    def median(timings: list[Timing], name: str) -> float:
        return statistics.median(getattr(timing, name) for timing in timings)

    num_tokens = len(direct[0].token_ids)
    equal = sum(a.token_ids == b.token_ids for a, b in zip(direct, served, strict=True))
    per_token = [median(side, "ms_per_token") for side in (direct, served)]
    ttft = [median(side, "ttft_ms") for side in (direct, served)]
    cpu = [sum(timing.cpu_ms for timing in side) / len(side) / num_tokens for side in (direct, served)]
    least = [min(timing.ttft_ms for timing in side) for side in (direct, served)]
    added = statistics.median(b.ttft_ms - a.ttft_ms for a, b in zip(direct, served, strict=True))
    sys.stdout.write(
        f"{len(direct)} answers of {num_tokens} tokens, {equal} the same on both sides\n"
        f"per token   direct {per_token[0]:6.2f} ms   served {per_token[1]:6.2f} ms"
        f"   overhead {per_token[1] / per_token[0] - 1:+.1%}\n"
        f"CPU         direct {cpu[0]:6.2f} ms   served {cpu[1]:6.2f} ms   overhead {cpu[1] / cpu[0] - 1:+.1%}\n"
        f"TTFT        direct {ttft[0]:6.1f} ms   served {ttft[1]:6.1f} ms   added {added:+.1f} ms\n"
        f"least TTFT  direct {least[0]:6.1f} ms   served {least[1]:6.1f} ms   added {least[1] - least[0]:+.1f} ms\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--draft-len", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer; 1 shows what the first one costs")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    count, draft_len = given.tokens, given.draft_len
    tokenizer = TextTokenizer.load(given.build / "tokenizer")
    target = load_engine(given.build, "target", given.threads)
    direct = measure_plain(target, tokenizer, count)
    if draft_len:
        draft = load_engine(given.build, "draft", given.threads)
        direct = measure_direct(target, draft, tokenizer, draft_len, count)
    options = ServerOptions(num_threads=given.threads)
    with TritonServer(given.build, options=options) as server, TritonClient(server.endpoints.grpc) as client:
        served = with_cpu_time(measure_served(client, draft_len, count), cpu_of(server))
        report(*take_turns(with_cpu_time(direct, time.process_time), served, given.runs, count))


if __name__ == "__main__":
    main()
