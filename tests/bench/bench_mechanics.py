"""The gain of speculation where nothing is rejected, against what the measured costs promise.

    python tests/bench/bench_mechanics.py --layers 4 --max-draft-len 1 2 4 6 8

The target is SmolLM2 with identity layers inserted: --layers copies of every layer, of which only the first computes;
the output projections of the others are zero. It computes the same function at that many times the cost. The draft is
plain SmolLM2, so every token is accepted. c is the cost of a draft token, v(K) that of a pass that verifies K drafts,
both over the target's own step; the prediction is (K + 1) / (K c + v(K)). Costs and gain are measured apart: c on the
draft engine alone, v with drafts that cost nothing, the gain end to end. All take turns; medians over the runs.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from trtkit.cli.environment import cache_directory
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions
from trtkit.draft_length import FixedDraftLength
from trtkit.reference.draft_target import speculate
from trtkit.reference.engine import Engine
from trtkit.reference.proposal import EngineProposer, Proposal, Proposer
from trtkit.reference.request import GenerationRequest

TARGET = "HuggingFaceTB--SmolLM2-135M-Instruct"
_ZEROED = ("attention.dense.weight", "mlp.proj.weight")


class KnownAnswer:
    """A proposer that costs nothing: it reads the drafts off the answer."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = tuple(token_ids)

    def propose(self, wanted: Sequence[tuple[GenerationRequest, int]]) -> list[Proposal]:
        return [Proposal(self._token_ids[len(r.prompt_ids) :][:length]) for r, length in wanted]


def insert_identities(checkpoint: Path, out: Path, copies: int) -> None:
    """Write a TensorRT-LLM checkpoint with `copies` layers for every one, the added ones without any effect."""
    out.mkdir()
    config = json.loads((checkpoint / "config.json").read_text())
    config["num_hidden_layers"] *= copies
    (out / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, tensor in load_file(checkpoint / "rank0.safetensors").items():
        match = re.fullmatch(r"transformer\.layers\.(\d+)\.(.+)", name)
        if match is None:
            tensors[name] = tensor
            continue
        for copy in range(copies):
            is_idle = copy > 0 and match[2] in _ZEROED
            copied = torch.zeros_like(tensor) if is_idle else tensor.clone()
            tensors[f"transformer.layers.{int(match[1]) * copies + copy}.{match[2]}"] = copied
    save_file(tensors, out / "rank0.safetensors")


class Pair:
    """Both engines and one prompt, whose answer is known."""

    def __init__(self, target: Engine, draft: Engine, new_tokens: int, clock: Callable[[], float]) -> None:
        self.target, self.draft, self._clock = target, draft, clock
        generator = torch.Generator().manual_seed(0)
        prompt = tuple(torch.randint(1000, 40_000, (32,), generator=generator).tolist())
        self.request = GenerationRequest("mechanics", prompt, new_tokens)
        answer = [token_id for output in target.generate(self.request) for token_id in output.token_ids]
        self._known = KnownAnswer((*prompt, *answer))
        self._drafting = EngineProposer(draft, target.vocab_size)

    def plain_s(self, engine: Engine) -> float:
        """Seconds of a token; the prompt is in the cache already."""
        started = self._clock()
        engine.generate(self.request)
        return (self._clock() - started) / self.request.max_new_tokens

    def verification_s(self, max_draft_len: int) -> float:
        """Seconds of a pass over K drafts."""
        return self._answer_s(self._known, max_draft_len) * (max_draft_len + 1)

    def drafted_s(self, max_draft_len: int) -> float:
        """Seconds of a token with the draft model at work."""
        return self._answer_s(self._drafting, max_draft_len)

    def _answer_s(self, proposer: Proposer, max_draft_len: int) -> float:
        length = FixedDraftLength(max_draft_len)
        started = self._clock()
        [answer] = speculate(self.target, proposer, [(self.request, length)])
        elapsed_s = self._clock() - started
        if any(each.num_accepted_tokens != each.num_draft_tokens for each in answer.acceptances):
            raise RuntimeError("a draft was rejected: the target does not compute the draft's function")
        return elapsed_s / len(answer.token_ids)


def measure(pair: Pair, lengths: list[int], num_runs: int) -> None:
    plain, draft = [], []
    passes: dict[int, list[float]] = {length: [] for length in lengths}
    gains: dict[int, list[float]] = {length: [] for length in lengths}
    for run in range(-1, num_runs):  # run -1 warms up and is not counted
        plain_s, draft_s = pair.plain_s(pair.target), pair.plain_s(pair.draft)
        for length in lengths:
            pass_s, drafted_s = pair.verification_s(length), pair.drafted_s(length)
            again_s = pair.plain_s(pair.target)
            if run >= 0:
                passes[length].append(pass_s / again_s)
                gains[length].append(again_s / drafted_s)
        if run >= 0:
            plain.append(plain_s)
            draft.append(draft_s / plain_s)
    cost = statistics.median(draft)
    sys.stdout.write(f"step of the target {statistics.median(plain) * 1e3:.1f} ms, c = {cost:.3f}\n")
    sys.stdout.write("K   v(K)  predicted  measured  measured / predicted\n")
    for length in lengths:
        verification, measured = statistics.median(passes[length]), statistics.median(gains[length])
        predicted = (length + 1) / (length * cost + verification)
        ratio = measured / predicted
        sys.stdout.write(f"{length:<2}  {verification:.2f}  {predicted:>9.2f}  {measured:>8.2f}  {ratio:>8.3f}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4, help="layers of the target for every layer of the draft")
    parser.add_argument("--max-draft-len", type=int, nargs="+", default=[1, 2, 4, 6, 8])
    parser.add_argument("--checkpoint", type=Path, default=cache_directory() / "checkpoints" / TARGET)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time; for one thread on a busy machine")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        draft, target = Path(scratch) / "draft", Path(scratch) / "target"
        draft.mkdir()
        convert_checkpoint(arguments.checkpoint, draft, ConversionOptions(dtype=arguments.dtype))
        insert_identities(draft, target, arguments.layers)
        engines = [Engine.load(folder, max_batch_size=1, max_seq_len=256) for folder in (target, draft)]
    sys.stdout.write(f"{arguments.layers} x layers, {arguments.dtype}, {arguments.threads} threads\n")
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    measure(Pair(*engines, arguments.new_tokens, clock), arguments.max_draft_len, arguments.runs)


if __name__ == "__main__":
    main()
