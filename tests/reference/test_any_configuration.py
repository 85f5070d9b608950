"""Whatever the engine is configured for, requests in company get the answers that they get alone; no block leaks."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trtkit.errors import RequestError
from trtkit.reference.engine import Engine
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.request import GenerationRequest
from trtkit.reference.sampling.params import SamplingParams

MAX_SEQ_LEN = 64
STEM = tuple(range(5, 60))


@st.composite
def caches(draw: st.DrawFn) -> CacheOptions:
    window = draw(st.sampled_from([None, 1, 5, 24]))
    block_size = draw(st.sampled_from([1, 4, 16, 64]))
    heavy_tokens = draw(st.sampled_from([0, 0, 7])) if window else 0
    return CacheOptions(
        dtype=draw(st.sampled_from(["float", "fp8", "int4"])),
        block_size=block_size,
        num_blocks=draw(st.sampled_from([None, MAX_SEQ_LEN // block_size + 1])),
        reuse="off" if heavy_tokens else draw(st.sampled_from(["tokens", "full_blocks", "off"])),
        window_tokens=window,
        sink_tokens=draw(st.sampled_from([0, 3, 9])) if window else 0,
        heavy_tokens=heavy_tokens,
    )


SIZES = st.fixed_dictionaries(
    {"max_batch_size": st.sampled_from([1, 3]), "max_num_tokens": st.sampled_from([1, 9, 512])}
)
REQUESTS = st.builds(
    GenerationRequest,
    request_id=st.just(""),
    prompt_ids=st.one_of(
        st.integers(1, 50).map(lambda length: STEM[:length]),
        st.lists(st.integers(0, 96), min_size=1, max_size=40).map(tuple),
    ),
    max_new_tokens=st.sampled_from([1, 6, 14, 40]),
    sampling=st.sampled_from([SamplingParams(), SamplingParams(top_k=0, temperature=0.9, seed=1)]),
)
DRAFTS = st.sampled_from([(), "right", "right then wrong", "longer than any pass"])
OPERATIONS = st.lists(st.one_of(st.tuples(REQUESTS, DRAFTS), st.sampled_from(["step", "cancel"])), max_size=12)


def drafted(kind: Any, answer: tuple[int, ...]) -> tuple[int, ...]:
    wrong = ((answer[-1] + 1) % 97, 5)
    return {"right": answer, "right then wrong": answer[:2] + wrong, "longer than any pass": (answer + wrong) * 40}.get(
        kind, kind
    )


class Company:
    """Requests of one engine, and the answers of another one that has room for everything and knows one at a time."""

    def __init__(self, checkpoint: Path, cache: CacheOptions, sizes: dict[str, int]) -> None:
        lonely = replace(cache, num_blocks=None, reuse="off")
        self.engine = Engine.load(checkpoint, max_seq_len=MAX_SEQ_LEN, cache=cache, **sizes)
        self._lonely = Engine.load(checkpoint, max_batch_size=1, max_seq_len=MAX_SEQ_LEN, cache=lonely)
        self.expected: dict[str, tuple[int, ...]] = {}
        self.answers: dict[str, tuple[int, ...]] = {}
        self.cancelled: set[str] = set()

    def submit(self, name: str, request: GenerationRequest, draft: Any) -> None:
        """Nothing happens where the cache is too small for the request."""
        with suppress(RequestError):
            self.engine.validate(request)
            self._submit(name, request, draft)

    def _submit(self, name: str, request: GenerationRequest, draft: Any) -> None:
        outputs = self._lonely.generate(request)
        answer = tuple(token for output in outputs for token in output.token_ids)
        self.engine.submit(replace(request, request_id=name, draft_ids=drafted(draft, answer)))
        self.expected[name], self.answers[name] = answer, ()

    def cancel(self) -> None:
        name = next(reversed(self.expected), "nobody")
        if self.engine.cancel(name):
            self.cancelled.add(name)

    def step(self) -> None:
        for output in self.engine.step():
            assert output.error is None
            self.answers[output.request_id] += output.token_ids
        self.engine.check()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(cache=caches(), sizes=SIZES, operations=OPERATIONS)
def test_a_request_answers_as_if_it_were_alone_in_any_configuration(
    tiny_checkpoint: Path, cache: CacheOptions, sizes: dict[str, int], operations: list[Any]
) -> None:
    company = Company(tiny_checkpoint, cache, sizes)
    for number, operation in enumerate(operations):
        if operation == "step":
            company.step()
        elif operation == "cancel":
            company.cancel()
        else:
            company.submit(str(number), *operation)
    for _ in range(1000):
        company.step()
    assert not company.engine.has_work, "nobody gets on"
    for name, answer in company.expected.items():
        got = company.answers[name]
        assert got == (answer[: len(got)] if name in company.cancelled else answer)
    assert company.engine.num_free_blocks == company.engine.num_blocks
