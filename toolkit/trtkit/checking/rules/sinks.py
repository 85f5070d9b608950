"""Rules about attention sinks: where the runtime can keep them, and what `rolling` needs. Knows no KV format."""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checking.rules.limits import scaled_positions
from trtkit.engines.release import Release, newest_sinks_release

_STRATEGY = "attention_sinks.strategy"
_KEEPS_SINKS = "LlamaForCausalLM"


def _lost_with(deployment: Deployment) -> Release | None:
    """The release of the YAML when engine sinks are asked of it and it has them no longer."""
    release = deployment.release if deployment.engine_sinks and deployment.backend == "engine" else None
    return release if release is not None and not release.sinks else None


def _version(deployment: Deployment) -> Iterable[Hit]:
    """Only where an older release would help: neither for a pair nor for another architecture does it."""
    release, spec = _lost_with(deployment), deployment.specs.get("target")
    helps = deployment.speculation is None and (spec is None or spec.architecture == _KEEPS_SINKS)
    if release is not None and helps:
        newest = newest_sinks_release()
        yield hit(_STRATEGY, version=release.version, newest=newest.version, image=newest.images[-1])


def _ignored(deployment: Deployment) -> Iterable[Hit]:
    if deployment.engine_sinks and deployment.backend == "llmapi":
        yield hit(_STRATEGY)


def _architecture(deployment: Deployment) -> Iterable[Hit]:
    spec = deployment.specs.get("target")
    if deployment.engine_sinks and deployment.backend == "engine" and spec is not None:
        if spec.architecture != _KEEPS_SINKS:
            yield hit(_STRATEGY, architecture=spec.architecture, newest=newest_sinks_release().version)


def _speculation(deployment: Deployment) -> Iterable[Hit]:
    if deployment.engine_sinks and deployment.backend == "engine" and deployment.speculation is not None:
        chain = deployment.outcome("target").block_reuse.then("a draft-target engine refuses to load without reuse")
        release, newest = _lost_with(deployment), newest_sinks_release().version
        gone = (
            f"TensorRT-LLM {release.version} builds no engine that keeps sinks, and up to {newest}: " if release else ""
        )
        yield hit(_STRATEGY, chain=gone + chain)


def _reuse(deployment: Deployment) -> Iterable[Hit]:
    asked = deployment.config.kv_cache.reuse and deployment.speculation is None
    if deployment.engine_sinks and deployment.backend == "engine" and asked:
        yield hit("kv_cache.reuse", chain=deployment.outcome("target").block_reuse.then())


def _eviction_blocks(deployment: Deployment) -> Iterable[Hit]:
    sinks, block_size = deployment.config.attention_sinks, deployment.config.kv_cache.block_size
    if sinks is None or sinks.strategy != "rolling" or sinks.evict_tokens is None:
        return
    if sinks.evict_tokens % block_size:
        yield hit(
            "attention_sinks.evict_tokens",
            evict=sinks.evict_tokens,
            block_size=block_size,
            rounded=max(block_size, sinks.evict_tokens // block_size * block_size),
        )


def _window(deployment: Deployment) -> Iterable[Hit]:
    sinks, longest = deployment.config.attention_sinks, deployment.config.limits.max_input_len
    if sinks is None or sinks.strategy != "rolling":
        return
    kept = sinks.sink_tokens + sinks.window_tokens
    if kept > longest or sinks.window_tokens <= deployment.config.max_draft_len:
        yield hit(
            "attention_sinks.window_tokens",
            kept=kept,
            longest=longest,
            window=sinks.window_tokens,
            draft_len=deployment.config.max_draft_len,
        )


def _unkept(deployment: Deployment) -> Iterable[Hit]:
    sinks = deployment.config.attention_sinks
    if deployment.backend == "llmapi" and sinks is not None and sinks.strategy == "rolling":
        yield hit("attention_sinks")


def _positions(deployment: Deployment) -> Iterable[Hit]:
    sinks = deployment.config.attention_sinks
    if sinks is None:
        return
    kept = sinks.sink_tokens + sinks.window_tokens
    for role, spec in deployment.specs.items():
        positions = scaled_positions(spec.max_seq_len, spec.rope_scaling)
        if kept > positions:
            yield hit("attention_sinks.window_tokens", kept=kept, role=role, positions=positions)


SINK_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="SINK-SPEC",
        severity="error",
        looks_at="YAML",
        when="strategy engine together with draft_target, in every release",
        cause="attention sinks kept by the engine and draft-target speculation exclude each other: {chain}",
        fix="write strategy: rolling, which keeps the sinks outside of the engine, or speculation: {{kind: none}}",
        source="builder.py; trtGptModelInflightBatching.cpp",
        find=_speculation,
        example=hit(
            _STRATEGY,
            chain="the engine keeps attention sinks (--streamingllm) -> use_paged_context_fmha is switched off -> "
            "the runtime cannot reuse KV blocks -> a draft-target engine refuses to load without reuse",
        ),
    ),
    Rule(
        code="SINK-VERSION",
        severity="error",
        looks_at="YAML",
        when="strategy engine with a TensorRT-LLM after 0.21, for a Llama model without a draft",
        cause="trtllm-build of TensorRT-LLM {version} asserts that streamingllm is off; {newest} was the last with it",
        fix="write strategy: rolling, or tensorrt_llm: {newest} (Triton image {image})",
        source="TensorRT-LLM PR #6379",
        find=_version,
        example=hit(_STRATEGY, version="1.2.1", newest="0.21.0", image="25.08"),
    ),
    Rule(
        code="SINK-IGNORED",
        severity="error",
        looks_at="YAML",
        when="strategy engine with backend llmapi",
        cause="the LLM API ignores sink_token_length but, up to 1.2, reserves the blocks: answers are silently wrong",
        fix="remove attention_sinks, or use backend: engine, for which strategy: rolling keeps them",
        source="TensorRT-LLM PR #14275",
        find=_ignored,
        example=hit(_STRATEGY),
    ),
    Rule(
        code="SINK-ARCH",
        severity="error",
        looks_at="YAML",
        when="strategy engine with a target that is no LlamaForCausalLM",
        cause="the builder kept sinks for LlamaForCausalLM only, up to {newest}; the target is {architecture}",
        fix="write strategy: rolling",
        source="commands/build.py up to 0.21",
        find=_architecture,
        example=hit(_STRATEGY, architecture="Qwen2ForCausalLM", newest="0.21.0"),
    ),
    Rule(
        code="SINK-REUSE",
        severity="warning",
        looks_at="YAML",
        when="strategy engine together with kv_cache.reuse",
        cause="reuse: true will have no effect: {chain}",
        fix="write reuse: false, or strategy: rolling",
        source="builder.py; trtGptModelInflightBatching.cpp",
        find=_reuse,
        example=hit(
            "kv_cache.reuse",
            chain="the engine keeps attention sinks (--streamingllm) -> use_paged_context_fmha is switched off -> "
            "the runtime cannot reuse KV blocks",
        ),
    ),
    Rule(
        code="SINK-EVICT",
        severity="error",
        looks_at="YAML",
        when="evict_tokens is no multiple of kv_cache.block_size",
        cause="evict_tokens {evict} is no multiple of block_size {block_size}; reuse keeps whole blocks only",
        fix="write evict_tokens: {rounded}",
        source="KV blocks are reused whole",
        find=_eviction_blocks,
        example=hit("attention_sinks.evict_tokens", evict=100, block_size=32, rounded=96),
    ),
    Rule(
        code="SINK-WINDOW",
        severity="error",
        looks_at="YAML",
        when="with strategy rolling, sinks and window exceed max_input_len, or the window holds no draft",
        cause="sinks and window are {kept} tokens, sent as prompts of at most {longest}; the window of {window} must "
        "also hold more than a draft of {draft_len}",
        fix="change window_tokens or limits.max_input_len",
        source="trtkit's draft-target model",
        find=_window,
        example=hit("attention_sinks.window_tokens", kept=4096, longest=2048, window=4092, draft_len=5),
    ),
    Rule(
        code="SINK-LLMAPI",
        severity="error",
        looks_at="YAML",
        when="strategy rolling with backend llmapi",
        cause="the llmapi model takes whole prompts, and nothing in front of it keeps attention sinks",
        fix="remove attention_sinks, or use backend: engine",
        source="Triton's llmapi model",
        find=_unkept,
        example=hit("attention_sinks"),
    ),
    Rule(
        code="SINK-POSITIONS",
        severity="error",
        looks_at="YAML",
        when="sinks and window together exceed the positions of a model",
        cause="sinks and window are {kept} tokens; the {role} knows {positions} positions",
        fix="write window_tokens so that sink_tokens + window_tokens is at most {positions}",
        source="StreamingLLM numbers positions inside the cache",
        find=_positions,
        example=hit("attention_sinks.window_tokens", kept=8192, role="draft", positions=4096),
    ),
)
