"""What trtllm-build turns a request into: the switches it flips without asking, each with the chain of reasons.

Follows the order of builder.py (TensorRT-LLM 1.0) and the checks of trtGptModelInflightBatching.cpp. Pure; judges
nothing: whether an outcome is acceptable is for the rules.
"""

from dataclasses import dataclass

# Weight formats with which the builder keeps paged context FMHA when the KV cache is FP8.
FP8_FMHA_QUANTIZATION = frozenset({"fp8", "w4a8_awq", "nvfp4"})
MIN_FP8_SM = 89
DEFAULT_MAX_NUM_TOKENS = 8192


@dataclass(frozen=True)
class BuildRequest:
    """What one engine is asked to be. sm None means that the GPU is not known; then no rule of the GPU is applied."""

    quantization: str
    kv_dtype: str
    sm: int | None
    streamingllm: bool
    max_draft_len: int
    reuse: bool
    context_logits: bool = False


@dataclass(frozen=True)
class Switch:
    """On or off, and the steps that led there, first cause first; no steps means that the request was granted."""

    on: bool
    because: tuple[str, ...] = ()

    def then(self, *steps: str) -> str:
        """The chain in words, continued by `steps`."""
        return " -> ".join((*self.because, *steps))


@dataclass(frozen=True)
class Outcome:
    """The switches of the built engine and of its runtime."""

    paged_context_fmha: Switch
    fp8_context_fmha: Switch
    block_reuse: Switch


@dataclass(frozen=True)
class EffectiveLimits:
    """The sizes that stand in the engine's config.json."""

    max_seq_len: int
    max_num_tokens: int


def build_outcome(request: BuildRequest) -> Outcome:
    """Apply the builder's rewrites and the runtime's consequences."""
    paged = _paged_context_fmha(request)
    return Outcome(paged, _fp8_context_fmha(request, paged), _block_reuse(request, paged))


def effective_limits(max_batch_size: int, max_seq_len: int, max_draft_len: int) -> EffectiveLimits:
    """max_seq_len grows by max_draft_len; max_num_tokens holds one full draft of every sequence."""
    return EffectiveLimits(
        max_seq_len=max_seq_len + max_draft_len,
        max_num_tokens=max(DEFAULT_MAX_NUM_TOKENS, max_batch_size * (max_draft_len + 1)),
    )


def _paged_context_fmha(request: BuildRequest) -> Switch:
    off = "use_paged_context_fmha is switched off"
    if request.streamingllm:
        return Switch(False, ("the engine keeps attention sinks (--streamingllm)", off))
    if request.kv_dtype == "int8":
        return Switch(False, ("the KV cache is INT8", off))
    if request.kv_dtype != "fp8":
        return Switch(True)
    if request.quantization not in FP8_FMHA_QUANTIZATION:
        weights = "unquantised" if request.quantization == "none" else request.quantization
        return Switch(False, (f"the KV cache is FP8 and the weights are {weights}", off))
    if request.sm is not None and request.sm < MIN_FP8_SM:
        return Switch(False, (f"the KV cache is FP8 and the GPU is SM {request.sm}", off))
    return Switch(True)


def _fp8_context_fmha(request: BuildRequest, paged: Switch) -> Switch:
    if not paged.on:
        return Switch(False, (*paged.because, "use_fp8_context_fmha needs it"))
    if request.kv_dtype != "fp8":
        return Switch(False, ("the KV cache is not FP8", "use_fp8_context_fmha is switched off"))
    return Switch(True)


def _block_reuse(request: BuildRequest, paged: Switch) -> Switch:
    if not request.reuse:
        return Switch(False, ("kv_cache.reuse is false",))
    if not paged.on:
        return Switch(False, (*paged.because, "the runtime cannot reuse KV blocks"))
    if request.context_logits:
        return Switch(False, ("the engine gathers context logits", "the runtime cannot reuse KV blocks"))
    return Switch(True)
