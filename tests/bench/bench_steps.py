"""What a step of the engine costs beside its tensors, what a reused prefix saves, and how long a start takes.

    python tests/bench/bench_steps.py                   # bfloat16, 2 threads, SmolLM2

"beside tensors": the part of a decode step at batch 1 that is not spent in the decoder: scheduling, batch, choosing,
reporting. "dispatch": the part of the step in which no operator of PyTorch runs, by its profiler, which slows the step
down itself. "prefix": time to the first token of a prompt whose first tokens are known, against the prompt that holds
only the new ones. "start": Engine.load in a process that has imported PyTorch, and a whole process that loads it.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile
from trtkit.cli.environment import cache_directory
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions
from trtkit.reference.engine import Engine
from trtkit.reference.model.decoder import Decoder
from trtkit.reference.request import GenerationRequest

TARGET = "HuggingFaceTB--SmolLM2-135M-Instruct"
_START = """
import sys
from pathlib import Path
from trtkit.reference.engine import Engine
Engine.load(Path(sys.argv[1]), max_batch_size=4, max_seq_len=2048)
"""


def prompt(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(1000, 40_000, (length,), generator=generator).tolist())


def decode_s(engine: Engine, seed: int, num_tokens: int) -> float:
    """Seconds of the steps after the prompt's."""
    engine.submit(GenerationRequest("steps", prompt(32, seed), num_tokens + 1))
    engine.step()
    started = time.perf_counter()
    while engine.has_work:
        engine.step()
    return time.perf_counter() - started


class Stopwatch:
    """Adds up the time inside the decoder."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._run = Decoder.run

    def __enter__(self) -> "Stopwatch":
        run = self._run

        def timed(*arguments: object, **options: object) -> object:
            started = time.perf_counter()
            result = run(*arguments, **options)
            self.seconds += time.perf_counter() - started
            return result

        Decoder.run = timed
        return self

    def __exit__(self, *problem: object) -> None:
        Decoder.run = self._run


def step_shares(engine: Engine, num_runs: int) -> None:
    steps, beside = [], []
    for run in range(-1, num_runs):
        with Stopwatch() as decoder:
            total_s = decode_s(engine, run + 1, 64)
            # The prompt's pass is the decoder's as well; a request of one token has the same.
            in_decoder_s = decoder.seconds
        with Stopwatch() as decoder:
            decode_s(engine, run + 10_000, 0)
        if run >= 0:
            steps.append(total_s / 64)
            beside.append(1 - (in_decoder_s - decoder.seconds) / total_s)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        total_s = decode_s(engine, 20_000, 32)
    operators_s = sum(event.self_cpu_time_total for event in profiled.key_averages()) / 1e6
    sys.stdout.write(f"decode step {statistics.median(steps) * 1e3:.2f} ms\n")
    sys.stdout.write(f"beside tensors {statistics.median(beside):.1%} of it\n")
    sys.stdout.write(f"dispatch {max(1 - operators_s / total_s, 0):.1%} of a profiled step\n")


def first_token_s(engine: Engine, token_ids: tuple[int, ...]) -> float:
    started = time.perf_counter()
    engine.generate(GenerationRequest("first", token_ids, 1))
    return time.perf_counter() - started


def prefix_costs(engine: Engine, num_runs: int) -> None:
    whole, reused, alone = [], [], []
    for run in range(num_runs):
        known, new = prompt(480, 30_000 + run), prompt(32, 40_000 + run)
        whole.append(first_token_s(engine, known))
        reused.append(first_token_s(engine, known + new))
        alone.append(first_token_s(engine, new))
    ratio = statistics.median(mine / other for mine, other in zip(reused, alone, strict=True))
    sys.stdout.write(f"prefix: 480 tokens {statistics.median(whole) * 1e3:.1f} ms, then 32 more ")
    sys.stdout.write(f"{statistics.median(reused) * 1e3:.1f} ms, 32 alone {statistics.median(alone) * 1e3:.1f} ms, ")
    sys.stdout.write(f"ratio {ratio:.2f}\n")


def start_times(checkpoint: Path, num_runs: int) -> None:
    loads, processes = [], []
    for _ in range(num_runs):
        started = time.perf_counter()
        Engine.load(checkpoint, max_batch_size=4, max_seq_len=2048)
        loads.append(time.perf_counter() - started)
        started = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-c", _START, str(checkpoint)], check=True)
        processes.append(time.perf_counter() - started)
    sys.stdout.write(f"start: {statistics.median(loads):.2f} s, a whole process {statistics.median(processes):.2f} s\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=cache_directory() / "checkpoints" / TARGET)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch)
        convert_checkpoint(arguments.checkpoint, checkpoint, ConversionOptions(dtype=arguments.dtype))
        engine = Engine.load(checkpoint, max_batch_size=2, max_seq_len=1024)
        sys.stdout.write(f"{arguments.dtype}, {arguments.threads} threads\n")
        step_shares(engine, arguments.runs)
        prefix_costs(engine, arguments.runs)
        start_times(checkpoint, arguments.runs)


if __name__ == "__main__":
    main()
