"""What drafting gains over the same engine without a draft, on the shipped prompts; SmolLM2 as `trtkit demo` made it.

    python tests/bench/bench_speculation.py                            # the draft model, on the chat prompts
    python tests/bench/bench_speculation.py --kind lookup --group long # prompt lookup, on the long prompts
    python tests/bench/bench_speculation.py --group chat --group code --adaptive-only --runs 7

The modes take turns on every prompt, so that a busy moment of the machine hits all of them, and the order turns from
run to run. Greedy, batch 1, caches empty at the start of a run. The target reads a prompt first; "decode" is the time
after that, in which the draft reads it too, "whole" is both. Gains are the median over the runs of (time without drafts
/ time with them); "tokens/step" is what a step of the target yields. Every answer is checked to be the one without.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from trtkit.cli.environment import cache_directory
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions
from trtkit.draft_length import AdaptiveDraftLength, DraftLength, FixedDraftLength
from trtkit.prompts.encoding import PromptEncoder
from trtkit.prompts.files import shipped_prompts
from trtkit.reference.draft_target import SpeculativeAnswer, speculate
from trtkit.reference.engine import Engine
from trtkit.reference.prompt_lookup import PromptLookup
from trtkit.reference.proposal import EngineProposer, Proposer
from trtkit.reference.request import GenerationRequest

CHECKPOINTS = {"target": "HuggingFaceTB--SmolLM2-135M-Instruct", "draft": "trtkit--smollm2-draft"}
END_ID = 2
Clock = Callable[[], int]


class Outcome(NamedTuple):
    """One answer: seconds for the prompt and after it, tokens, steps of the target."""

    prompt_s: float
    decode_s: float
    num_tokens: int
    num_steps: int


class Mode:
    """A way to answer, with engines of its own, which every run loads anew."""

    def __init__(
        self, checkpoints: dict[str, Path], kind: str, max_draft_len: int, clock: Clock, *, adaptive: bool = False
    ) -> None:
        self._checkpoints, self._kind, self._longest, self._clock = checkpoints, kind, max_draft_len, clock
        self._adaptive = adaptive
        self.name = "off" if max_draft_len == 0 else f"{kind} {'adaptive to ' if adaptive else 'K='}{max_draft_len}"

    def start(self) -> Callable[[GenerationRequest], tuple[Outcome, tuple[int, ...]]]:
        """Load, and return what answers and times one request."""
        target = Engine.load(self._checkpoints["target"], max_batch_size=1, max_seq_len=1024)
        proposer = self._proposer(target.vocab_size)
        lengths: list[AdaptiveDraftLength] = []

        def length() -> DraftLength:
            if not self._adaptive:
                return FixedDraftLength(self._longest)
            lengths.append(AdaptiveDraftLength(self._longest, *(each.experience for each in lengths[-1:])))
            return lengths[-1]

        def answer(request: GenerationRequest) -> tuple[Outcome, tuple[int, ...]]:
            started_ns = self._clock()
            target.generate(replace(request, max_new_tokens=1))
            known_ns = self._clock()
            [result] = speculate(target, proposer, [(request, length())], self._clock)
            times = (known_ns - started_ns) / 1e9, (self._clock() - known_ns) / 1e9
            return _outcome(result, *times), result.token_ids

        return answer

    def _proposer(self, vocab_size: int) -> Proposer:
        if self._kind == "lookup" or self._longest == 0:
            return PromptLookup()
        return EngineProposer(Engine.load(self._checkpoints["draft"], max_batch_size=1, max_seq_len=1024), vocab_size)


def _outcome(result: SpeculativeAnswer, prompt_s: float, decode_s: float) -> Outcome:
    saved = sum(acceptance.num_accepted_tokens for acceptance in result.acceptances)
    return Outcome(prompt_s, decode_s, len(result.token_ids), len(result.token_ids) - saved)


def compare(modes: list[Mode], requests: list[GenerationRequest], num_runs: int) -> dict[str, list[list[Outcome]]]:
    """Mode -> run -> an outcome per request. Raises RuntimeError when a mode answers anything else than "off"."""
    outcomes: dict[str, list[list[Outcome]]] = {mode.name: [] for mode in modes}
    for run in range(-1, num_runs):  # run -1 warms up and is not counted
        turn = modes[run % len(modes) :] + modes[: run % len(modes)]
        answerers = {mode.name: mode.start() for mode in turn}
        found: dict[str, list[Outcome]] = {name: [] for name in answerers}
        for request in requests:
            answers = {}
            for name, answer in answerers.items():
                outcome, answers[name] = answer(request)
                found[name].append(outcome)
            if len(set(answers.values())) != 1:
                raise RuntimeError(f"drafting changed the answer to {request.request_id}")
        if run >= 0:
            for name, each in found.items():
                outcomes[name].append(each)
    return outcomes


def requests_of(groups: list[str], tokenizer: Path, new_tokens: int) -> list[GenerationRequest]:
    encoder = PromptEncoder.load(tokenizer)
    chosen = [prompt for prompt in shipped_prompts() if prompt.group in groups]
    return [GenerationRequest(p.name, encoder.encode(p).prompt_ids, new_tokens, end_id=END_ID) for p in chosen]


def report(outcomes: dict[str, list[list[Outcome]]]) -> None:
    sys.stdout.write("mode                  tokens/s  tokens/step  decode (least, most)   whole\n")
    for name, runs in outcomes.items():
        num_tokens, num_steps = (sum(getattr(each, key) for each in runs[0]) for key in ("num_tokens", "num_steps"))
        speed = num_tokens / statistics.median(sum(each.decode_s for each in run) for run in runs)
        pairs = list(zip(outcomes["off"], runs, strict=True))
        decode = [sum(e.decode_s for e in off) / sum(e.decode_s for e in own) for off, own in pairs]
        whole = [_whole_s(off) / _whole_s(own) for off, own in pairs]
        gain = f"{statistics.median(decode):.3f} ({min(decode):.3f}, {max(decode):.3f})"
        row = f"{name:<20}  {speed:>8.1f}  {num_tokens / num_steps:>11.2f}  {gain}  {statistics.median(whole):.3f}"
        sys.stdout.write(row + "\n")


def _whole_s(run: list[Outcome]) -> float:
    return sum(each.prompt_s + each.decode_s for each in run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("draft", "lookup"), default="draft")
    parser.add_argument("--group", action="append", help="class of shipped prompts; chat when none is given")
    parser.add_argument("--max-draft-len", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--adaptive-only", action="store_true", help="compare nothing but the adaptive length with off")
    parser.add_argument("--checkpoints", type=Path, default=cache_directory() / "checkpoints")
    parser.add_argument("--draft", type=Path, help="another draft's folder")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time; for one thread on a busy machine")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=96)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folders = {role: arguments.checkpoints / name for role, name in CHECKPOINTS.items()}
    folders["draft"] = arguments.draft or folders["draft"]
    requests = requests_of(arguments.group or ["chat"], folders["target"], arguments.new_tokens)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoints = {role: Path(scratch) / role for role in folders}
        for role, folder in folders.items():
            checkpoints[role].mkdir()
            convert_checkpoint(folder, checkpoints[role], ConversionOptions(dtype=arguments.dtype))
        longest = max(arguments.max_draft_len)
        fixed = [] if arguments.adaptive_only else arguments.max_draft_len
        clock = time.process_time_ns if arguments.cpu_time else time.perf_counter_ns
        modes = [Mode(checkpoints, arguments.kind, length, clock) for length in (0, *fixed)]
        modes.append(Mode(checkpoints, arguments.kind, longest, clock, adaptive=True))
        sys.stdout.write(f"{len(requests)} prompts, {arguments.dtype}, {arguments.threads} threads\n")
        report(compare(modes, requests, arguments.runs))


if __name__ == "__main__":
    main()
