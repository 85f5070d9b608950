"""The cache that a rendered repository and an engine directory lead to."""

from pathlib import Path

import pytest
from trtkit.engines.inspect import EngineInfo
from trtkit.engines.spec import EngineSpec
from trtkit.errors import InputError
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.serving.arguments import ModelArguments
from trtkit.standin.cache import cache_options


def options(**parameters: str) -> CacheOptions:
    spec = EngineSpec(max_batch_size=1, max_input_len=8, max_seq_len=16, block_size=16)
    info = EngineInfo(Path("engine"), "1.2.1", "LlamaForCausalLM", "bfloat16", 100, 1, spec, Path("checkpoint"))
    arguments = ModelArguments("tensorrt_llm", parameters, decoupled=True, build=Path("build"))
    return cache_options(info, arguments)


def test_the_block_size_is_the_engines_and_the_format_the_checkpoints() -> None:
    assert options() == CacheOptions(dtype="auto", block_size=16)


def test_reuse_is_a_parameter() -> None:
    assert options(enable_kv_cache_reuse="false").reuse == "off"
    assert options(enable_kv_cache_reuse="true").reuse == "tokens"


def test_the_window_of_tensorrt_llm_counts_the_sinks() -> None:
    kept = options(max_attention_window_size="64", sink_token_length="4")
    assert (kept.window_tokens, kept.sink_tokens) == (60, 4)
    assert options(max_attention_window_size="64").window_tokens == 64
    assert options().window_tokens is None


@pytest.mark.parametrize("window", [{}, {"max_attention_window_size": "4"}])
def test_sinks_without_a_window_are_refused(window: dict[str, str]) -> None:
    with pytest.raises(InputError, match="sink_token_length is 4") as caught:
        options(sink_token_length="4", **window)
    assert caught.value.code == "PARAM-WINDOW"
