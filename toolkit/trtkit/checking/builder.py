"""What trtllm-build turns a request into: the switches it flips without asking, each with the chain of reasons.

Follows the order of builder.py (TensorRT-LLM 1.0) and the checks of trtGptModelInflightBatching.cpp. Pure; judges
nothing: whether an outcome is acceptable is for the rules.
"""

from dataclasses import dataclass

from trtkit.engines.spec import FP8_ATTENTION_QUANTIZATION, MIN_FP8_SM, EngineSpec


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
    block_reuse: Switch


def build_outcome(spec: EngineSpec) -> Outcome:
    """Apply the builder's rewrites and the runtime's consequences."""
    paged = _paged_context_fmha(spec)
    return Outcome(paged, _block_reuse(spec, paged))


def _paged_context_fmha(spec: EngineSpec) -> Switch:
    off = "use_paged_context_fmha is switched off"
    if spec.attention_sinks:
        return Switch(False, ("the engine keeps attention sinks (--streamingllm)", off))
    if spec.kv_dtype == "int8":
        return Switch(False, ("the KV cache is INT8", off))
    if spec.kv_dtype != "fp8":
        return Switch(True)
    if spec.quantization not in FP8_ATTENTION_QUANTIZATION:
        weights = "unquantised" if spec.quantization == "none" else spec.quantization
        return Switch(False, (f"the KV cache is FP8 and the weights are {weights}", off))
    if spec.sm is not None and spec.sm < MIN_FP8_SM:
        return Switch(False, (f"the KV cache is FP8 and the GPU is SM {spec.sm}", off))
    return Switch(True)


def _block_reuse(spec: EngineSpec, paged: Switch) -> Switch:
    if not spec.reuse:
        return Switch(False, ("kv_cache.reuse is false",))
    if not paged.on:
        return Switch(False, (*paged.because, "the runtime cannot reuse KV blocks"))
    return Switch(True)
