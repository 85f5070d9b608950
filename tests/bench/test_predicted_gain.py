"""The predicted gain of drafting against the measured one, on the reference engine with the demo pair.

Costs are measured on some prompts, acceptance and speed on others; the prediction has to meet the speed.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from trtkit.acceptance import summarize
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.planning.speculation import RoundCosts, best_draft_len, chance_of, measured_speedup
from trtkit.reference.draft_target import generate_with_draft
from trtkit.reference.engine import Engine
from trtkit.reference.proposal import EngineProposer
from trtkit.reference.request import GenerationRequest
from trtkit.reference.sampling.params import SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.demo, pytest.mark.timeout(3000)]
DRAFT_LENS = range(1, 9)
NEW_TOKENS = 48
ROUNDS = 2
TOLERANCE = 0.15
NEAR_BEST = 0.05
TEXTS = (
    "The three largest cities of France are",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "List five reasons why people learn a second language:\n1.",
)


def request_of(prompt: tuple[int, ...], new_tokens: int = NEW_TOKENS) -> GenerationRequest:
    greedy = SamplingParams(top_k=1)
    return GenerationRequest("gain", prompt_ids=prompt, max_new_tokens=new_tokens, sampling=greedy)


@pytest.fixture(scope="module")
def engines(demo_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    torch.set_num_threads(1)  # then CPU time is work, whatever else the machine does
    loaded = {}
    for role, source in demo_pair.items():
        out = tmp_path_factory.mktemp("gain") / role
        convert_to(source, out, ConversionOptions(dtype="bfloat16"))
        loaded[role] = Engine.load(out, max_batch_size=2, max_seq_len=512)
    return loaded


@pytest.fixture(scope="module")
def prompts(demo_pair: dict[str, Path]) -> list[tuple[int, ...]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(demo_pair["target"] / "tokenizer.json"))
    return [tuple(tokenizer.encode(text).ids) for text in TEXTS]


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def step_costs(engines: dict[str, Engine], prompt: tuple[int, ...]) -> tuple[float, dict[int, float]]:
    """(seconds of a plain token, seconds of a round by K) on one prompt, medians over its decoding."""
    target, draft = engines["target"], engines["draft"]
    answer = [t for out in target.generate(request_of(prompt)) for t in out.token_ids]
    plain, rounds = [], {length: [] for length in DRAFT_LENS}
    for position in range(8, NEW_TOKENS - 8, 8):
        text = (*prompt, *answer[:position])
        target.generate(request_of(text, 1))
        draft.generate(request_of(text, 1))
        plain.append(
            seconds(lambda text=text, position=position: target.generate(request_of((*text, answer[position]), 1)))
        )
        for length in DRAFT_LENS:
            rest = request_of((*text, *answer[position : position + 2]), 32)
            target.generate(request_of(text, 1))
            draft.generate(request_of(text, 1))

            def one_round(rest: GenerationRequest = rest, length: int = length) -> None:
                [proposal] = EngineProposer(draft, target.vocab_size).propose([(rest, length)])
                target.submit(replace(rest, draft_ids=proposal.draft_ids))
                target.step()
                target.cancel(rest.request_id)
                target.step()

            rounds[length].append(seconds(one_round))
    return statistics.median(plain), {length: statistics.median(found) for length, found in rounds.items()}


def test_the_prediction_meets_the_measurement(
    engines: dict[str, Engine], prompts: list[tuple[int, ...]], tmp_path: Path
) -> None:
    target, draft = engines["target"], engines["draft"]
    plain_s: list[float] = []
    spent: dict[int, list[float]] = {length: [] for length in DRAFT_LENS}
    rates: dict[int, float] = {}
    costs: list[tuple[float, dict[int, float]]] = []
    for _ in range(ROUNDS):
        costs += [step_costs(engines, prompt) for prompt in prompts[:2]]
        plain_s.append(sum(seconds(lambda p=p: target.generate(request_of(p))) for p in prompts[2:]))
        for length in DRAFT_LENS:
            outcomes = []

            def speculate(length: int = length, outcomes: list = outcomes) -> None:
                for prompt in prompts[2:]:
                    outcomes.extend(generate_with_draft(target, draft, request_of(prompt), length).acceptances)

            spent[length].append(seconds(speculate))
            rates[length] = summarize(outcomes).acceptance_rate or 0.0
    plain = statistics.median(cost for cost, _ in costs)
    round_s = {length: statistics.median(found[length] for _, found in costs) for length in DRAFT_LENS}
    relative = RoundCosts(0.0, lambda length: round_s[length] / plain)
    rows = []
    for length in DRAFT_LENS:
        measured = statistics.median(a / b for a, b in zip(plain_s, spent[length], strict=True))
        predicted = measured_speedup(rates[length], length, relative)
        rows.append({"K": length, "acceptance": rates[length], "predicted": predicted, "measured": measured})
    (tmp_path / "gain.json").write_text(json.dumps(rows, indent=1))
    report = "\n".join(f"K={r['K']} a={r['acceptance']:.2f} {r['predicted']:.3f} {r['measured']:.3f}" for r in rows)
    wrong = [row["K"] for row in rows if abs(row["predicted"] / row["measured"] - 1) > TOLERANCE]
    assert not wrong, report
    by_length = {0: 1.0} | {row["K"]: row["measured"] for row in rows}
    recommended = best_draft_len(chance_of(rates[4], 4), relative, DRAFT_LENS)
    assert by_length[recommended] >= (1 - NEAR_BEST) * max(by_length.values()), f"{recommended}\n{report}"
