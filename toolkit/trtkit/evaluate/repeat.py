"""The command line that does again what was asked for in Python. Knows options and their flags, runs nothing."""

import shlex
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from trtkit.builds import Build
from trtkit.evaluate.bench.run import BenchOptions
from trtkit.evaluate.oracle.record_choice import PromptChoice
from trtkit.evaluate.parity.run import CheckOptions

_BENCH_FLAGS = {
    "draft_lens": "--draft-len",
    "concurrencies": "--concurrency",
    "rates": "--rate",
    "trace": "--trace",
    "seed": "--seed",
    "num_requests": "--requests",
    "rounds": "--rounds",
    "baseline": "--baseline",
    "out": "--out",
}
_BENCH_SWITCHES = {
    "cold": "--warm",
    "plot": "--no-plot",
    "with_oracle": "--oracle",
    "update_baseline": "--update-baseline",
}


def check_command(build: Path, options: CheckOptions) -> str:
    """`trtkit parity check` with the prompts and shares of these options."""
    words = ["trtkit", "parity", "check", str(build), *_given(options.choice), *_given(options.shares)]
    return shlex.join([*words, *(["--in-process"] if options.in_process else [])])


def bench_command(build: Path, options: BenchOptions) -> str:
    """`trtkit bench` with these options."""
    words = ["trtkit", "bench", str(build), *_given(options.choice), *_given(options.limits)]
    usual = BenchOptions(PromptChoice())
    for name, flag in _BENCH_FLAGS.items():
        value = getattr(options, name)
        if value != getattr(usual, name):
            words += [part for each in (value if isinstance(value, tuple) else (value,)) for part in (flag, str(each))]
    words += [flag for name, flag in _BENCH_SWITCHES.items() if getattr(options, name) != getattr(usual, name)]
    return shlex.join(words)


def sampling_command(build: Build, choice: PromptChoice, distance: float, seed: int) -> str:
    """`trtkit parity sampling` with these options. Its --limit has a default, and answers are of one length."""
    chosen = replace(choice, limit=choice.limit or len(choice.read(build)), max_new_tokens=None)
    words = ["trtkit", "parity", "sampling", str(build.folder), *_given(chosen)]
    return shlex.join([*words, "--distance", str(distance), "--seed", str(seed)])


def _given(chosen: object) -> Iterator[str]:
    """The flags of a dataclass whose fields are named as they are; None was not given."""
    for field in fields(chosen):  # type: ignore[arg-type]
        value = getattr(chosen, field.name)
        if value is not None:
            yield from (f"--{field.name.replace('_', '-')}", str(value))
