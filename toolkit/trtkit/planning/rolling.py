"""What rolling attention sinks cost: one prefill of what is kept, per eviction. Knows arithmetic, no session."""

from dataclasses import dataclass

from trtkit.config.schema import BuildConfig
from trtkit.planning.gpus import GpuModel
from trtkit.planning.model_plan import ModelPlan


@dataclass(frozen=True)
class RollingCost:
    """evict_tokens are dropped at once, then kept_tokens are encoded anew; ms figures are None without a GPU."""

    evict_tokens: int
    kept_tokens: int
    prefill_ms: float | None
    ms_per_token: float | None


def evicted_at_once(window_tokens: int, block_size: int, evict_tokens: int | None) -> int:
    """Tokens dropped at once: as asked, else a quarter of the window, in whole blocks when it has one."""
    quarter = window_tokens // 4
    return evict_tokens or quarter // block_size * block_size or max(1, quarter)


def rolling_cost(config: BuildConfig, target: ModelPlan, gpu: GpuModel | None) -> RollingCost | None:
    """The cost for the target of a config; None without rolling sinks."""
    sinks = config.attention_sinks
    if sinks is None or sinks.strategy != "rolling":
        return None
    evicted = evicted_at_once(sinks.window_tokens, config.kv_cache.block_size, sinks.evict_tokens)
    kept = sinks.sink_tokens + max(0, sinks.window_tokens - evicted)
    if gpu is None:
        return RollingCost(evicted, kept, None, None)
    prefill = target.token_ms(gpu, 0, new_tokens=kept)
    return RollingCost(evicted, kept, prefill, prefill / evicted)
