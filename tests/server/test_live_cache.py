"""Real servers whose engines have the cache that the YAML asks for."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_build import tiny_build, tiny_config
from trtkit.client.completion import Completion, collect
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.config.schema import BuildConfig
from trtkit.reference.engine import Engine
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.request import GenerationRequest
from trtkit.server.launch import ServerOptions
from trtkit.server.triton_server import TritonServer
from trtkit.serving.text import TextTokenizer

pytestmark = pytest.mark.tritonserver
NUM_TOKENS = 50


@contextmanager
def served(folder: Path, config: BuildConfig) -> Iterator[TritonClient]:
    build = tiny_build(folder, config)
    with TritonServer(build, options=ServerOptions(load_timeout_s=60, num_threads=1)) as server:
        with TritonClient(server.endpoints.grpc) as client:
            yield client


def ask(client: TritonClient, num_tokens: int, num_draft_tokens: int) -> Completion:
    request = GenerateRequest("hello", num_tokens, deadline_s=60, num_draft_tokens=num_draft_tokens)
    return collect(client.generate(request), lambda _: None)


def engine_tokens(build: Path, cache: CacheOptions, num_tokens: int) -> tuple[int, ...]:
    """What the same checkpoint answers in this process."""
    engine = Engine.load(build / "checkpoints" / "target", max_batch_size=1, max_seq_len=160, cache=cache)
    prompt_ids = tuple(TextTokenizer.load(build / "tokenizer").encode("hello", add_special_tokens=True))
    outputs = engine.generate(GenerationRequest("a", prompt_ids, num_tokens, end_id=2))
    return tuple(token for output in outputs for token in output.token_ids)


@pytest.mark.parametrize(
    ("sections", "cache"),
    [
        ({"kv_cache": {"dtype": "int4", "block_size": 16}}, CacheOptions("int4", block_size=16)),
        (
            {"attention_sinks": {"sink_tokens": 2, "window_tokens": 14, "strategy": "engine"}},
            CacheOptions(block_size=32, sink_tokens=2, window_tokens=14),
        ),
    ],
    ids=["INT4", "sinks of the engine"],
)
def test_the_served_engine_has_the_cache_of_the_yaml(
    sections: dict[str, object], cache: CacheOptions, tmp_path: Path
) -> None:
    with served(tmp_path, tiny_config(**sections)) as client:
        alone, speculating = (ask(client, NUM_TOKENS, count) for count in (0, 4))
    expected = engine_tokens(tmp_path / "build", cache, NUM_TOKENS)
    assert expected != engine_tokens(tmp_path / "build", CacheOptions("float", block_size=32), NUM_TOKENS)
    assert alone.token_ids == speculating.token_ids == expected
