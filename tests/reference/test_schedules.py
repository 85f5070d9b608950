"""Whatever is submitted, cancelled and stepped in whatever order, every request gets the answer it gets alone."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trtkit.reference.engine import Engine
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.request import GenerationRequest
from trtkit.reference.sampling.params import SamplingParams

STEM = tuple(range(5, 90))
WAYS = (
    SamplingParams(),
    SamplingParams(top_k=0, temperature=0.9, seed=1),
    SamplingParams(top_k=5, repetition_penalty=1.3, frequency_penalty=0.1, seed=2),
)
PROMPTS = (STEM[:1], STEM[:30], STEM[:64], STEM[:70], STEM, (*STEM[:40], 1, 2, 3), (7,) * 20, tuple(reversed(STEM)))


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "prompt_ids": draw(st.sampled_from(PROMPTS)),
        "max_new_tokens": draw(st.integers(1, 12)),
        "sampling": draw(st.sampled_from(WAYS)),
        "draft_ids": draw(st.sampled_from([(), (3, 4), "right", "right then wrong"])),
    }


OPERATIONS = st.lists(st.one_of(requests(), st.just("step"), st.just("step"), st.just("cancel")), max_size=25)


CACHES = {
    "room for all": CacheOptions(),
    "small blocks": CacheOptions(block_size=8),
    "too few blocks for three": CacheOptions(block_size=16, num_blocks=9),
    "whole blocks of finished requests": CacheOptions(block_size=16, num_blocks=14, reuse="full_blocks"),
    "no reuse, too few blocks": CacheOptions(block_size=8, num_blocks=16, reuse="off"),
    "FP8": CacheOptions("fp8", block_size=16, num_blocks=14),
    "window": CacheOptions(window_tokens=24, block_size=8, num_blocks=40),
    "sinks": CacheOptions(window_tokens=24, sink_tokens=4, block_size=16, num_blocks=22),
    "INT4": CacheOptions("int4", block_size=64, num_blocks=5),
    "heavy hitters": CacheOptions(
        window_tokens=10, sink_tokens=2, heavy_tokens=9, block_size=8, num_blocks=60, reuse="off"
    ),
    "heavy hitters, FP8, too few blocks": CacheOptions(
        "fp8", window_tokens=20, heavy_tokens=12, block_size=16, num_blocks=18, reuse="off"
    ),
}


@pytest.fixture(scope="module", params=CACHES)
def cache(request: pytest.FixtureRequest) -> CacheOptions:
    return CACHES[request.param]


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path, cache: CacheOptions) -> Engine:
    """One for all examples: what earlier ones left in its cache makes the reuse."""
    return Engine.load(tiny_checkpoint, max_batch_size=3, max_seq_len=128, cache=cache)


@pytest.fixture(scope="module")
def alone(tiny_checkpoint: Path, cache: CacheOptions) -> Any:
    spacious = replace(cache, num_blocks=None, reuse="off")
    lonely = Engine.load(tiny_checkpoint, max_batch_size=1, max_seq_len=128, cache=spacious)

    @lru_cache
    def answer(prompt: tuple[int, ...], max_new_tokens: int, sampling: SamplingParams) -> tuple[int, ...]:
        outputs = lonely.generate(GenerationRequest("a", prompt, max_new_tokens, sampling))
        return tuple(token for output in outputs for token in output.token_ids)

    return answer


class Observer:
    """Submits, steps, and writes down what comes back."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answers: dict[str, tuple[int, ...]] = {}
        self.ended: dict[str, str] = {}

    def submit(self, request: GenerationRequest) -> None:
        self.engine.submit(request)
        self.answers[request.request_id] = ()

    def cancel_oldest(self) -> None:
        self.engine.cancel(next((name for name in self.answers if name not in self.ended), "nobody"))

    def step(self) -> None:
        for output in self.engine.step():
            self.answers[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                self.ended[output.request_id] = output.finish_reason
        self.engine.check()


def with_draft(kind: Any, answer: tuple[int, ...]) -> tuple[int, ...]:
    """The draft of a request, given the answer it will get."""
    drafts = {"right": answer, "right then wrong": (*answer[:2], (answer[-1] + 1) % 97, 5)}
    return drafts.get(kind, kind)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(operations=OPERATIONS)
def test_a_request_answers_as_if_it_were_alone(engine: Engine, alone: Any, operations: list[Any]) -> None:
    observer = Observer(engine)
    expected: dict[str, tuple[int, ...]] = {}
    for number, operation in enumerate(operations):
        if operation == "step":
            observer.step()
        elif operation == "cancel":
            observer.cancel_oldest()
        else:
            answer = alone(operation["prompt_ids"], operation["max_new_tokens"], operation["sampling"])
            draft_ids = with_draft(operation["draft_ids"], answer)
            observer.submit(GenerationRequest(str(number), **{**operation, "draft_ids": draft_ids}))
            expected[str(number)] = answer
    while engine.has_work:
        observer.step()
    for name, answer in expected.items():
        got = observer.answers[name]
        assert got == (answer[: len(got)] if observer.ended[name] == "cancelled" else answer)
