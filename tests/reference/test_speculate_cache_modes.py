"""Rejected drafts leave no trace in any kind of cache: with a draft the answer is the one without, mode by mode."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from trtkit.draft_length import FixedDraftLength
from trtkit.reference.beam_engine import BeamEngine
from trtkit.reference.draft_target import speculate
from trtkit.reference.engine import Engine
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.proposal import EngineProposer
from trtkit.reference.request import BeamRules, GenerationRequest
from trtkit.reference.sampling.params import SamplingParams

MakeEngine = Callable[..., Engine]
MakePrompt = Callable[..., tuple[int, ...]]
MODES = {
    "blocks": CacheOptions(block_size=16, reuse="full_blocks"),
    "no reuse": CacheOptions(block_size=16, reuse="off"),
    "too few blocks": CacheOptions(block_size=8, num_blocks=26),
    "too few blocks, none found again": CacheOptions(block_size=8, num_blocks=26, reuse="off"),
    "window": CacheOptions(block_size=8, window_tokens=24),
    "sinks": CacheOptions(block_size=8, window_tokens=24, sink_tokens=4),
    "heavy hitters": CacheOptions(block_size=8, window_tokens=12, sink_tokens=2, heavy_tokens=10, reuse="off"),
    "fp8": CacheOptions(block_size=8, dtype="fp8"),
    "int4": CacheOptions(block_size=8, dtype="int4"),
}


def alone_in(mode: str) -> CacheOptions:
    """What the same tokens are kept in by an engine that has room for everything and finds nothing again."""
    return replace(MODES[mode], num_blocks=None, reuse="off")


@pytest.mark.parametrize("mode", MODES)
def test_many_sequences_with_drafts_answer_as_each_alone(
    make_engine: MakeEngine, make_prompt: MakePrompt, tiny_draft_checkpoint: Path, mode: str
) -> None:
    sampled = SamplingParams(temperature=0.8, top_k=0, seed=4)
    requests = [
        GenerationRequest("r", make_prompt(5 + 11 * i, seed=i), 50, sampled if i % 2 else SamplingParams())
        for i in range(6)
    ]
    alone = []
    for request in requests:
        steps = make_engine(max_batch_size=1, cache=alone_in(mode)).generate(request)
        alone.append(tuple(token for step in steps for token in step.token_ids))
    target = make_engine(max_batch_size=6, max_seq_len=128, cache=MODES[mode])
    draft = make_engine(tiny_draft_checkpoint, max_batch_size=6, max_seq_len=128, cache=MODES[mode])
    lengths = [FixedDraftLength(1 + i % 4) for i in range(6)]
    answers = speculate(target, EngineProposer(draft, 97), list(zip(requests, lengths, strict=True)))
    target.check()
    draft.check()
    assert [answer.token_ids for answer in answers] == alone
    assert all(answer.acceptances for answer in answers)


@pytest.mark.parametrize("mode", MODES)
def test_beams_are_the_same(make_engine: MakeEngine, make_prompt: MakePrompt, mode: str) -> None:
    found = []
    for engine in (make_engine(cache=alone_in(mode)), make_engine(max_seq_len=128, cache=MODES[mode])):
        front = BeamEngine(engine)
        request = GenerationRequest("b", make_prompt(40), 20, beam=BeamRules(4))
        front.submit(request)
        front.submit(replace(request, request_id="c", prompt_ids=make_prompt(50, seed=1)))
        outputs = []
        while front.has_work:
            outputs += front.step()
        engine.check()
        found.append({output.request_id: [beam.token_ids for beam in output.beams] for output in outputs})
    assert found[0] == found[1]
