"""Decode speed of the reference engine against transformers' generate(), on the same weights in the same run.

    python tests/bench/bench_decode.py                # bfloat16, 2 threads, SmolLM2 as `trtkit demo` prepared it
    python tests/bench/bench_decode.py --dtype float32 --threads 1 --runs 7

The engines take turns, so that a busy moment of the machine hits both. Batch 1, greedy, the end token ignored. TTFT is
the time to the first token; decode speed is that of all tokens after it. Medians over the runs; "ratio" is the
engine's decode speed over transformers'. Nothing is compiled and nothing is reused between runs.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from trtkit.cli.environment import cache_directory
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions
from trtkit.reference.engine import Engine
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.request import GenerationRequest

PROMPT_LENGTHS = (32, 512)
TARGET = "HuggingFaceTB--SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Timing:
    """One answer."""

    ttft_ms: float
    decode_tokens_per_s: float


Measure = Callable[[tuple[int, ...], int], Timing]
Clock = Callable[[], float]


def measure_engine(engine: Engine, clock: Clock) -> Measure:
    def measure(prompt: tuple[int, ...], num_tokens: int) -> Timing:
        engine.submit(GenerationRequest("bench", prompt, num_tokens))
        start = clock()
        engine.step()
        first = clock()
        while engine.has_work:
            engine.step()
        return Timing((first - start) * 1e3, (num_tokens - 1) / (clock() - first))

    return measure


def measure_transformers(model: PreTrainedModel, clock: Clock) -> Measure:
    def seconds(prompt: tuple[int, ...], num_tokens: int) -> float:
        ids = torch.tensor([prompt])
        start = clock()
        answer = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        elapsed = clock() - start
        if answer.shape[1] != len(prompt) + num_tokens:
            raise RuntimeError("transformers stopped early; the comparison would be unfair")
        return elapsed

    def measure(prompt: tuple[int, ...], num_tokens: int) -> Timing:
        first = seconds(prompt, 1)
        return Timing(first * 1e3, (num_tokens - 1) / (seconds(prompt, num_tokens) - first))

    return measure


def random_prompt(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(1000, 40_000, (length,), generator=generator).tolist())


def load(checkpoint: Path, dtype: str, scratch: Path, clock: Clock) -> dict[str, Measure]:
    convert_checkpoint(checkpoint, scratch, ConversionOptions(dtype=dtype))
    started = time.perf_counter()
    engine = Engine.load(scratch, max_batch_size=1, max_seq_len=1024, cache=CacheOptions(reuse="off"))
    sys.stderr.write(f"engine loaded in {time.perf_counter() - started:.2f} s\n")
    oracle = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype)).eval()
    return {"transformers": measure_transformers(oracle, clock), "trtkit": measure_engine(engine, clock)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=cache_directory() / "checkpoints" / TARGET)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time; for one thread on a busy machine")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        clock = time.process_time if arguments.cpu_time else time.perf_counter
        peers = load(arguments.checkpoint, arguments.dtype, Path(scratch), clock)
    sys.stdout.write(f"{arguments.dtype}, {arguments.threads} threads, {arguments.new_tokens} new tokens\n")
    sys.stdout.write("prompt  engine        TTFT ms  tokens/s  (fastest run)  ratio\n")
    for length in PROMPT_LENGTHS:
        timings: dict[str, list[Timing]] = {name: [] for name in peers}
        for run in range(-1, arguments.runs):  # run -1 warms up and is not counted
            for name, measure in peers.items():
                timing = measure(random_prompt(length, run + 1), arguments.new_tokens)
                if run >= 0:
                    timings[name].append(timing)
        report(length, timings)


def report(length: int, timings: dict[str, list[Timing]]) -> None:
    speeds = {name: [timing.decode_tokens_per_s for timing in runs] for name, runs in timings.items()}
    base = statistics.median(speeds["transformers"])
    for name, runs in timings.items():
        ttft_ms = statistics.median(timing.ttft_ms for timing in runs)
        speed = statistics.median(speeds[name])
        shown = f"{ttft_ms:>7.1f}  {speed:>8.1f}  {max(speeds[name]):>13.1f}  {speed / base:>5.2f}"
        sys.stdout.write(f"{length:>6}  {name:<12}  {shown}\n")


if __name__ == "__main__":
    main()
