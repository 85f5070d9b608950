"""The EngineSpec that a build config asks for. Knows the YAML's words, no command line and no checkpoint."""

from trtkit.config.schema import BuildConfig, DraftTarget
from trtkit.engines.spec import EngineSpec


def engine_spec(role: str, config: BuildConfig, sm: int | None) -> EngineSpec:
    """The limits and features of one engine, "target" or "draft"; sm: of the GPU it is for, None when not known.

    Both models get the same lengths; only the target verifies drafts (facts 5.1).
    """
    sinks, speculation = config.attention_sinks, config.speculation
    return EngineSpec(
        max_batch_size=config.limits.max_batch_size,
        max_input_len=config.limits.max_input_len,
        max_seq_len=config.limits.max_seq_len,
        max_draft_len=config.max_draft_len if role == "target" else 0,
        block_size=config.kv_cache.block_size,
        kv_dtype=config.kv_cache.dtype,
        quantization=config.models[role].quantization,
        reuse=config.kv_cache.reuse,
        attention_sinks=sinks is not None and sinks.strategy == "engine",
        speculates=config.draft is not None,
        generation_logits=isinstance(speculation, DraftTarget) and speculation.acceptance == "logits",
        sm=sm,
    )
