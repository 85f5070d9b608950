"""The parameters of a `tensorrt_llm` model, under NVIDIA's keys. Knows the backend's keys, not the tensors."""

from dataclasses import dataclass

from trtkit.config.schema import BuildConfig


@dataclass(frozen=True)
class KvMemory:
    """What the KV cache of one engine may take: a fraction of the GPU memory that is free when it loads, and a number
    of tokens (None: no limit of its own). The runtime takes the smaller of the two.
    """

    fraction: float
    max_tokens: int | None = None


@dataclass(frozen=True)
class LlmPlacement:
    """Where one engine lies and what it may use.

    devices: the GPU of each rank, by number. reuse: whether its KV blocks can be reused. participants: the MPI ranks of
    its processes, where they are started beforehand. windows: tokens that the layers attend to, repeated over them;
    none where all attend to all.
    """

    engine_dir: str
    kv_memory: KvMemory
    devices: tuple[int, ...]
    reuse: bool
    participants: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()


def llm_parameters(config: BuildConfig, placement: LlmPlacement) -> dict[str, str]:
    """Key -> value for config.pbtxt.

    Keys whose absence means what we want are left out, because the backend rejects their neutral values
    (sink_token_length 0, cross_kv_cache_fraction without an encoder). Everything whose default moved between
    releases is written: enable_kv_cache_reuse was off up to 0.18, enable_chunked_context in later ones.
    """
    parameters = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": placement.engine_dir,
        "max_beam_width": "1",
        "batch_scheduler_policy": "guaranteed_no_evict",
        "kv_cache_free_gpu_mem_fraction": f"{placement.kv_memory.fraction:g}",
        "enable_kv_cache_reuse": _flag(placement.reuse),
        "exclude_input_in_output": "false",
        "enable_chunked_context": "false",
        "normalize_log_probs": "true",
        "cancellation_check_period_ms": "100",
        "stats_check_period_ms": "100",
        "decoding_mode": "top_k_top_p",
        "gpu_weights_percent": "1.0",
        "enable_context_fmha_fp32_acc": "false",
        "multi_block_mode": "true",
        "cuda_graph_mode": "false",
        "cuda_graph_cache_size": "0",
        "num_nodes": "1",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    }
    return parameters | _gpu_parameters(config, placement) | _kept_tokens(config, placement)


def _gpu_parameters(config: BuildConfig, placement: LlmPlacement) -> dict[str, str]:
    """Devices, the limit of a shared GPU, and draft logits over MPI, which only a GPU has."""
    parameters = {}
    if placement.kv_memory.max_tokens is not None:
        parameters["max_tokens_in_paged_kv_cache"] = str(placement.kv_memory.max_tokens)
    if config.gpu is not None:
        parameters["gpu_device_ids"] = ",".join(map(str, placement.devices))
    if placement.participants:
        parameters["participant_ids"] = ",".join(map(str, placement.participants))
        parameters["speculative_decoding_fast_logits"] = "true"
    return parameters


def _kept_tokens(config: BuildConfig, placement: LlmPlacement) -> dict[str, str]:
    """The model's own windows, or the runtime's StreamingLLM; rolling sinks are kept by the orchestrator instead."""
    sinks = config.attention_sinks
    if sinks is None or sinks.strategy != "engine":
        windows = ",".join(map(str, placement.windows))
        return {"max_attention_window_size": windows} if windows else {}
    return {
        "max_attention_window_size": str(sinks.sink_tokens + sinks.window_tokens),
        "sink_token_length": str(sinks.sink_tokens),
    }


def _flag(value: bool) -> str:
    return "true" if value else "false"
