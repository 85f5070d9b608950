"""Real servers on other kinds of builds: not decoupled, without a draft, adaptive, with rolling sinks."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kserve import kserve_stream
from tiny_build import tiny_build, tiny_config
from trtkit.client.async_client import AsyncTritonClient
from trtkit.client.completion import Completion, collect
from trtkit.client.http_client import HttpClient
from trtkit.client.request import GenerateRequest
from trtkit.client.session import ChatSession
from trtkit.client.triton_client import TritonClient
from trtkit.config.schema import BuildConfig
from trtkit.errors import RequestError
from trtkit.evaluate.bench.latency import RunStats, summarize_run
from trtkit.evaluate.bench.load import Timer
from trtkit.evaluate.bench.plan import BenchPrompt, Load, measure_load
from trtkit.evaluate.endpoints.asynchronous import AsyncTritonEndpoint
from trtkit.server.launch import ServerOptions
from trtkit.server.triton_server import TritonServer
from trtkit.serving.draft_schedule import FILE, DraftSchedule, Step, schedule_document

pytestmark = pytest.mark.tritonserver


@contextmanager
def served(
    folder: Path, config: BuildConfig, *, same_draft: bool = False
) -> Iterator[tuple[TritonServer, TritonClient]]:
    build = tiny_build(folder, config, same_draft=same_draft)
    with TritonServer(build, options=ServerOptions(load_timeout_s=60, num_threads=1)) as server:
        with TritonClient(server.endpoints.grpc) as client:
            yield server, client


def ask(client: TritonClient, max_tokens: int, **options: object) -> Completion:
    return collect(client.generate(GenerateRequest("hello", max_tokens, deadline_s=60, **options)), lambda _: None)  # type: ignore[arg-type]


async def ask_async(address: str) -> tuple[int, ...]:
    async with AsyncTritonClient(address) as client:
        return tuple(
            [token async for chunk in client.generate(GenerateRequest("hello", 20)) for token in chunk.token_ids]
        )


def test_models_that_are_not_decoupled_answer_whole_unless_they_are_told_to_stream(
    client: TritonClient, tmp_path: Path
) -> None:
    expected = ask(client, 20).token_ids
    with served(tmp_path, tiny_config(serving={"streaming": False})) as (server, whole):
        for num_draft_tokens in (0, 4):
            assert ask(whole, 20, stream=False, num_draft_tokens=num_draft_tokens).token_ids == expected
        with pytest.raises(RequestError, match="REQ-STREAMING"):
            ask(whole, 20, stream=True)
        left_open = ask(whole, 20)
        assert (left_open.token_ids, left_open.tpot_ms) == (expected, None), "whole, and so first and last at once"
        with HttpClient(f"127.0.0.1:{server.endpoints.http_port}") as http:
            assert collect(http.generate(GenerateRequest("hello", 20)), lambda _: None).token_ids == expected
        assert asyncio.run(ask_async(server.endpoints.grpc)) == expected
        chat = ChatSession(whole, GenerateRequest("", 20))
        (tmp_path / "build" / "tokenizer" / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
        assert chat.say("hello", lambda _: None).completion is not None
        with kserve_stream(server.endpoints.grpc) as stream:
            request = {"text_input": ("BYTES", [[b"hello"]]), "max_tokens": ("INT32", [[20]])}
            assert len(stream.ask("ensemble", **request)) == 1


async def load(address: str, draft_len: int) -> RunStats:
    timer = Timer(time.perf_counter_ns)
    async with AsyncTritonEndpoint(address, timer.now_ns) as endpoint:
        prompts = [BenchPrompt(f"hello {number}", 20) for number in range(3)]
        answers, busy_ns = await measure_load(endpoint, Load("speculative", draft_len, 1), prompts, timer)
    stats = summarize_run(answers, busy_ns)
    assert stats is not None
    return stats


def test_the_bench_times_whole_answers_of_models_that_are_not_decoupled(tmp_path: Path) -> None:
    with served(tmp_path, tiny_config(serving={"streaming": False}), same_draft=True) as (server, _):
        stats = asyncio.run(load(server.endpoints.grpc, 4))
    assert (stats.tpot_ms, stats.ttft_ms) == (None, stats.e2e_ms)
    assert stats.acceptance_rate == 1.0 and stats.num_tokens == 60
    assert stats.acceptance_by_position is None, "one response does not tell the steps"


def test_a_build_without_a_draft_refuses_drafts_and_answers(client: TritonClient, tmp_path: Path) -> None:
    expected = ask(client, 20).token_ids
    with served(tmp_path, tiny_config(draft=False)) as (_, alone):
        assert ask(alone, 20).token_ids == expected
        with pytest.raises(RequestError, match="the build has no draft"):
            ask(alone, 20, num_draft_tokens=2)


def test_a_schedule_that_appears_while_serving_sets_the_draft_length(tmp_path: Path) -> None:
    def tune(draft_len: int) -> None:
        document = schedule_document(DraftSchedule((Step(4, draft_len),)), {})
        (tmp_path / "build" / FILE).write_text(json.dumps(document) + " " * draft_len)  # another size each time

    with served(tmp_path, tiny_config(), same_draft=True) as (_, client):
        expected = ask(client, 40)
        found = {}
        for draft_len in (0, 2):
            tune(draft_len)
            answer = ask(client, 40)
            assert answer.token_ids == expected.token_ids
            figures = answer.figures
            found[draft_len] = figures.num_draft_tokens / max(1, figures.num_target_passes)
        chosen = ask(client, 40, num_draft_tokens=4)
    assert found[0] == 0 and 1.5 < found[2] <= 2
    assert chosen.figures.num_target_passes == expected.figures.num_target_passes < 40 / 3


def test_an_adaptive_build_changes_its_draft_length_and_no_token(client: TritonClient, tmp_path: Path) -> None:
    expected = ask(client, 100, num_draft_tokens=4)
    with served(tmp_path, tiny_config(adaptive=True)) as (_, adaptive):
        answer = ask(adaptive, 100)
        fixed = ask(adaptive, 100, num_draft_tokens=4)
    assert answer.token_ids == fixed.token_ids == expected.token_ids
    assert 0 < answer.figures.num_draft_tokens < fixed.figures.num_draft_tokens


def test_rolling_sinks_answer_far_beyond_the_window(tmp_path: Path) -> None:
    sinks = {"sink_tokens": 4, "window_tokens": 60, "evict_tokens": 16}
    with served(tmp_path, tiny_config(attention_sinks=sinks)) as (_, client):
        speculating, alone = (ask(client, 600, num_draft_tokens=count) for count in (4, 0))
        cached = ask(client, 40, wants_cache_figures=True).figures
    for answer in (speculating, alone):
        assert len(answer.token_ids) == 600
        assert answer.figures.num_evicted_tokens >= 600 - 64
    # Both are shown the same tokens until the first eviction, which speculation reaches a little earlier.
    assert speculating.token_ids[:48] == alone.token_ids[:48]
    assert cached.num_reused_blocks is not None
