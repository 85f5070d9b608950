"""Many requests of mixed length at once, against transformers one by one and in one padded batch; the same weights.

    python tests/bench/bench_batches.py                 # 16 requests, bfloat16, 2 threads, SmolLM2
    python tests/bench/bench_batches.py --vllm PYTHON   # also vLLM, in the environment of that interpreter

Prompts of 16 to 512 tokens, answers of 32 to 128, drawn once; greedy, the end token ignored. The padded batch runs
until its longest answer is done, as generate() does; only the tokens that were asked for count. The three take turns;
tokens per second over the whole time, prompts included; "ratio" is the engine's speed over the other's in the same run.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from trtkit.cli.environment import cache_directory
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions
from trtkit.reference.engine import Engine
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.request import GenerationRequest

Answer = Callable[[list[GenerationRequest]], None]
TARGET = "HuggingFaceTB--SmolLM2-135M-Instruct"
PAD_ID = 2


def draw_requests(count: int, divisor: int) -> list[GenerationRequest]:
    draw = random.Random(0)
    return [
        GenerationRequest(
            str(index),
            tuple(draw.randint(1000, 40_000) for _ in range(draw.choice((16, 32, 64, 128, 256, 512)) // divisor)),
            draw.choice((32, 64, 96, 128)) // divisor,
        )
        for index in range(count)
    ]


def with_engine(engine: Engine) -> Answer:
    def answer(requests: list[GenerationRequest]) -> None:
        for request in requests:
            engine.submit(request)
        num_tokens = 0
        while engine.has_work:
            num_tokens += sum(len(output.token_ids) for output in engine.step())
        if num_tokens != sum(request.max_new_tokens for request in requests):
            raise RuntimeError("the engine answered another number of tokens than it was asked for")

    return answer


def one_by_one(model: PreTrainedModel) -> Answer:
    def answer(requests: list[GenerationRequest]) -> None:
        for request in requests:
            padded_batch(model)([request])

    return answer


def padded_batch(model: PreTrainedModel) -> Answer:
    def answer(requests: list[GenerationRequest]) -> None:
        width = max(len(request.prompt_ids) for request in requests)
        longest = max(request.max_new_tokens for request in requests)
        ids, mask = (torch.full((len(requests), width), value) for value in (PAD_ID, 0))
        for row, request in enumerate(requests):
            ids[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask[row, width - len(request.prompt_ids) :] = 1
        answers = model.generate(
            ids, attention_mask=mask, max_new_tokens=longest, do_sample=False, eos_token_id=None, pad_token_id=PAD_ID
        )
        if answers.shape[1] != width + longest:
            raise RuntimeError("transformers stopped early; the comparison would be unfair")

    return answer


@contextmanager
def with_vllm(
    python: str, checkpoint: Path, how: tuple[str, int], requests: list[GenerationRequest]
) -> Iterator[Answer]:
    """vLLM in a process of its own, which is idle while others answer; how: dtype and threads."""
    dtype, num_threads = how
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    program = [python, "-P", str(Path(__file__).with_name("vllm_answers.py"))]
    job = [(request.prompt_ids, request.max_new_tokens) for request in requests]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | settings
    ) as process:
        assert process.stdin is not None and process.stdout is not None, "both are pipes"

        def say(line: str) -> None:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            if not any(answer.startswith("trtkit ") for answer in process.stdout):
                raise RuntimeError("vLLM ended; its own output says why")

        say(json.dumps({"checkpoint": str(checkpoint), "dtype": dtype, "requests": job}))
        yield lambda some: say(str(len(some)))
        process.stdin.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=cache_directory() / "checkpoints" / TARGET)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time; for one thread on a busy machine")
    parser.add_argument("--divide", type=int, default=1, help="shorten prompts and answers; for a busy machine")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter of an environment with vLLM for CPUs")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    requests = draw_requests(arguments.requests, arguments.divide)
    with tempfile.TemporaryDirectory() as scratch:
        convert_checkpoint(arguments.checkpoint, Path(scratch), ConversionOptions(dtype=arguments.dtype))
        engine = Engine.load(
            Path(scratch), max_batch_size=len(requests), max_seq_len=1024, cache=CacheOptions(reuse="off")
        )
    model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=getattr(torch, arguments.dtype)).eval()
    peers = {"trtkit": with_engine(engine), "one by one": one_by_one(model), "padded batch": padded_batch(model)}
    with ExitStack() as stack:
        if arguments.vllm:
            how = (arguments.dtype, arguments.threads)
            peers["vLLM"] = stack.enter_context(with_vllm(arguments.vllm, arguments.checkpoint, how, requests))
        spent = measure(peers, requests, arguments.runs, clock)
    report(spent, requests, f"{arguments.dtype}, {arguments.threads} threads")


def measure(
    peers: dict[str, Answer], requests: list[GenerationRequest], num_runs: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds of every run; the peers take turns."""
    spent: dict[str, list[float]] = {name: [] for name in peers}
    for answer in peers.values():  # warm up
        answer(requests[:2])
    for _ in range(num_runs):
        for name, answer in peers.items():
            started = clock()
            answer(requests)
            spent[name].append(clock() - started)
    return spent


def report(spent: dict[str, list[float]], requests: list[GenerationRequest], how: str) -> None:
    num_tokens = sum(request.max_new_tokens for request in requests)
    num_prompt_tokens = sum(len(request.prompt_ids) for request in requests)
    sys.stdout.write(f"{len(requests)} requests, {num_prompt_tokens} + {num_tokens} tokens, {how}\n")
    sys.stdout.write("                tokens/s  ratio\n")
    for name, seconds in spent.items():
        ratio = statistics.median(other / own for own, other in zip(spent["trtkit"], seconds, strict=True))
        sys.stdout.write(f"{name:<14}  {num_tokens / statistics.median(seconds):>8.1f}  {ratio:>5.2f}\n")


if __name__ == "__main__":
    main()
