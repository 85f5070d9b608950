"""Answers the same requests with vLLM, again and again, for bench_batches.py. Runs in vLLM's own interpreter.

The first line of stdin is a job: {"checkpoint", "dtype", "requests": [[prompt ids, new tokens], ...]}; every line after
it asks for one run over the first so many requests. What it answers on stdout are lines "trtkit <seconds>".
"""

import json
import sys
import time

from vllm import LLM, SamplingParams


def main() -> None:
    job = json.loads(sys.stdin.readline())
    model = LLM(
        model=job["checkpoint"],
        dtype=job["dtype"],
        max_model_len=1024,
        max_num_seqs=len(job["requests"]),
        enable_prefix_caching=False,
    )
    prompts = [{"prompt_token_ids": ids} for ids, _ in job["requests"]]
    ways = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for _, count in job["requests"]]
    say(0)
    for line in sys.stdin:
        count = int(line)
        started = time.perf_counter()
        answers = model.generate(prompts[:count], ways[:count], use_tqdm=False)
        seconds = time.perf_counter() - started
        if any(len(a.outputs[0].token_ids) != way.max_tokens for a, way in zip(answers, ways, strict=False)):
            raise RuntimeError("vLLM stopped early; the comparison would be unfair")
        say(seconds)


def say(seconds: float) -> None:
    sys.stdout.write(f"trtkit {seconds}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
