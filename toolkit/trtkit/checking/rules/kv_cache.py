"""Rules about the format of the KV cache against weights, GPU, model and backend. Knows no sinks."""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.conversion.options import MODELOPT_QUANTIZATIONS
from trtkit.engines.spec import FP8_ATTENTION_QUANTIZATION, MIN_FP8_SM

# Weight format -> KV formats that ModelOpt or the builder reject with it.
_ILLEGAL_KV = {"int8_weight_only": {"fp8"}, "int4_weight_only": {"fp8"}}
# What KvCacheConfig.dtype and QuantAlgo know; int4 exists in the reference engine alone.
_TENSORRT_LLM_KV = {"engine": {"auto", "fp8", "int8"}, "llmapi": {"auto", "fp8"}}
# The caches that nvidia-modelopt exports scales of.
_MODELOPT_KV = ("auto", "fp8")
_DTYPE = "kv_cache.dtype"
_NON_CYCLIC_SINCE, _HOPPER = (1, 0, 0), 90


def _unknown_to_backend(deployment: Deployment) -> Iterable[Hit]:
    dtype = deployment.config.kv_cache.dtype
    known = _TENSORRT_LLM_KV.get(deployment.backend)
    if known is not None and dtype not in known:
        yield hit(_DTYPE, dtype=dtype, backend=deployment.backend, known=", ".join(sorted(known)))


def _sm(deployment: Deployment) -> Iterable[Hit]:
    gpu = deployment.gpu
    if gpu is not None and gpu.sm < MIN_FP8_SM and _fp8_on_gpu(deployment):
        yield hit(_DTYPE, gpu=gpu.name, sm=gpu.sm)


def _combination(deployment: Deployment) -> Iterable[Hit]:
    dtype = deployment.config.kv_cache.dtype
    if deployment.backend == "reference":
        return
    for role, model in deployment.config.models.items():
        if dtype in _ILLEGAL_KV.get(model.quantization, set()):
            # INT8 is no way out for a pair (KV-INT8-SPEC), nor for the LLM API (KV-DTYPE).
            other = "auto" if deployment.speculation or deployment.backend == "llmapi" else "auto or int8"
            yield hit(_DTYPE, dtype=dtype, role=role, weights=model.quantization, known=other)


def _fp8_without_fmha(deployment: Deployment) -> Iterable[Hit]:
    if deployment.backend != "engine" or deployment.config.kv_cache.dtype != "fp8":
        return
    if deployment.speculation is None or deployment.engine_sinks:
        return
    switch = deployment.outcome("target").paged_context_fmha
    if not switch.on and (deployment.gpu is None or deployment.gpu.sm >= MIN_FP8_SM):
        steps = ("the runtime cannot reuse KV blocks", "a draft-target engine refuses to load without reuse")
        yield hit(_DTYPE, chain=switch.then(*steps))


def _int8_with_draft(deployment: Deployment) -> Iterable[Hit]:
    if deployment.backend != "engine" or deployment.config.kv_cache.dtype != "int8":
        return
    if deployment.speculation is not None and not deployment.engine_sinks:
        steps = ("the runtime cannot reuse KV blocks", "a draft-target engine refuses to load without reuse")
        yield hit(_DTYPE, chain=deployment.outcome("target").paged_context_fmha.then(*steps))


def _reuse_lost(deployment: Deployment) -> Iterable[Hit]:
    """Of a pair's target it is an error, which other rules report: only a draft does without."""
    if deployment.backend != "engine" or deployment.engine_sinks or not deployment.config.kv_cache.reuse:
        return
    switches = {role: deployment.outcome(role).block_reuse for role in deployment.config.models}
    if deployment.speculation is None and not switches["target"].on:
        yield hit("kv_cache.reuse", role="target", chain=switches["target"].then())
    elif deployment.speculation is not None and switches["target"].on and not switches["draft"].on:
        chain = switches["draft"].then("every round encodes the whole text anew")
        yield hit("kv_cache.reuse", role="draft", chain=chain)


def _not_exported(deployment: Deployment) -> Iterable[Hit]:
    dtype = deployment.config.kv_cache.dtype
    if deployment.backend == "llmapi" or dtype in _MODELOPT_KV:
        return
    for role, model in deployment.config.models.items():
        if model.quantization in MODELOPT_QUANTIZATIONS:
            alone = deployment.speculation is None or model.quantization in FP8_ATTENTION_QUANTIZATION
            known = " or ".join(_MODELOPT_KV) if alone or deployment.backend != "engine" else "auto"
            yield hit(_DTYPE, dtype=dtype, role=role, weights=model.quantization, known=known)


def _attention_bias(deployment: Deployment) -> Iterable[Hit]:
    if not _fp8_on_gpu(deployment):
        return
    for role, spec in deployment.specs.items():
        if spec.attention_bias:
            yield hit(_DTYPE, role=role, architecture=spec.architecture)


def _window_reuse(deployment: Deployment) -> Iterable[Hit]:
    longest = deployment.config.limits.max_seq_len
    if not deployment.config.kv_cache.reuse or deployment.backend == "reference":
        return
    for role, spec in deployment.specs.items():
        slides = spec.sliding_window is not None and any(spec.layer_is_sliding) and longest > spec.sliding_window
        if slides and not _reuses_windows(deployment):
            # A pair cannot do without reuse (SPEC-REUSE), so that is no way out for it.
            alone = deployment.speculation is None or deployment.backend == "llmapi"
            risk = "" if alone else ", and a target without reuse does not load"
            way = "reuse: false, or limits within" if alone else "limits within"
            yield hit("kv_cache.reuse", role=role, window=spec.sliding_window, longest=longest, risk=risk, way=way)


def _reuses_windows(deployment: Deployment) -> bool:
    """Whether the kernels keep what leaves a window: from 1.0 on, on Hopper (TensorRT-LLM PR #6379)."""
    release, gpu = deployment.release, deployment.gpu
    return release is not None and release.order >= _NON_CYCLIC_SINCE and gpu is not None and gpu.sm == _HOPPER


def _fp8_on_gpu(deployment: Deployment) -> bool:
    return deployment.config.kv_cache.dtype == "fp8" and deployment.backend != "reference"


_CHAIN_END = "the runtime cannot reuse KV blocks -> a draft-target engine refuses to load without reuse"
KV_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="KV-DTYPE",
        severity="error",
        looks_at="YAML",
        when="the backend has no KV cache of this format",
        cause="backend {backend} has no {dtype} KV cache",
        fix="choose one of: {known}",
        source="QuantAlgo and KvCacheConfig.dtype",
        find=_unknown_to_backend,
        example=hit(_DTYPE, dtype="int4", backend="engine", known="auto, fp8, int8"),
    ),
    Rule(
        code="KV-FP8-SM",
        severity="error",
        looks_at="YAML",
        when="an FP8 KV cache on a GPU below SM 89",
        cause="an FP8 KV cache needs SM 89; {gpu} is SM {sm}",
        fix="write kv_cache.dtype: auto, or use an L4, L40S, H100 or newer GPU",
        source="builder.py; KvCacheConfig",
        find=_sm,
        example=hit(_DTYPE, gpu="a100-sxm-80gb", sm=80),
    ),
    Rule(
        code="KV-COMBO",
        severity="error",
        looks_at="YAML",
        when="an FP8 KV cache with weight-only INT8 or INT4",
        cause="a {dtype} KV cache cannot be combined with {weights} weights of the {role}: quantisation asserts",
        fix="write kv_cache.dtype: {known}, or choose fp8 weights",
        source="TensorRT-LLM issue #1113",
        find=_combination,
        example=hit(_DTYPE, dtype="fp8", role="target", weights="int8_weight_only", known="auto or int8"),
    ),
    Rule(
        code="KV-EXPORT",
        severity="error",
        looks_at="YAML",
        when="an INT8 or INT4 KV cache with weights that nvidia-modelopt quantises",
        cause="nvidia-modelopt writes the {role}'s {weights} weights, and no {dtype} KV cache with them",
        fix="write kv_cache.dtype: {known}, or choose fp8, int8_weight_only or int4_weight_only weights",
        source="modelopt/torch/export",
        find=_not_exported,
        example=hit(_DTYPE, dtype="int8", role="target", weights="int4_awq", known="auto or fp8"),
    ),
    Rule(
        code="KV-FP8-FMHA",
        severity="error",
        looks_at="YAML",
        when="an FP8 KV cache and draft_target, with target weights other than fp8, w4a8_awq or nvfp4",
        cause="the target builds, and then does not load: {chain}",
        fix="write target.quantization: fp8 (or w4a8_awq, nvfp4), or kv_cache.dtype: auto",
        source="builder.py; trtGptModelInflightBatching.cpp",
        find=_fp8_without_fmha,
        example=hit(
            _DTYPE,
            chain="the KV cache is FP8 and the weights are unquantised -> use_paged_context_fmha is switched off -> "
            + _CHAIN_END,
        ),
    ),
    Rule(
        code="KV-INT8-SPEC",
        severity="error",
        looks_at="YAML",
        when="an INT8 KV cache and draft_target",
        cause="the target builds, and then does not load: {chain}",
        fix="write kv_cache.dtype: auto, or fp8 with fp8 weights",
        source="builder.py; trtGptModelInflightBatching.cpp",
        find=_int8_with_draft,
        example=hit(_DTYPE, chain="the KV cache is INT8 -> use_paged_context_fmha is switched off -> " + _CHAIN_END),
    ),
    Rule(
        code="KV-REUSE-LOST",
        severity="warning",
        looks_at="YAML",
        when="kv_cache.reuse is true, and the KV format makes the builder switch it off, for the target or the draft",
        cause="reuse: true will have no effect on the {role}: {chain}",
        fix="write a KV format that keeps reuse (auto, or fp8 with fp8 weights of the {role}); without a draft, or "
        "reuse: false",
        source="builder.py; trtGptModelInflightBatching.cpp",
        find=_reuse_lost,
        example=hit(
            "kv_cache.reuse",
            role="target",
            chain="the KV cache is INT8 -> use_paged_context_fmha is switched off -> "
            "the runtime cannot reuse KV blocks",
        ),
    ),
    Rule(
        code="KV-FP8-BIAS",
        severity="error",
        looks_at="YAML",
        when="an FP8 KV cache and a model with biases on its key projection (Qwen2, Qwen2.5)",
        cause="the {role} ({architecture}) adds large biases to its keys; in an FP8 cache the answers turn to garbage",
        fix="write kv_cache.dtype: auto",
        source="TensorRT-LLM issues #2699 and #4218; Truss rejects it too",
        find=_attention_bias,
        example=hit(_DTYPE, role="target", architecture="Qwen2ForCausalLM"),
    ),
    Rule(
        code="KV-WINDOW-REUSE",
        severity="warning",
        looks_at="YAML",
        when="reuse with a sliding-window model whose window is shorter than the longest sequence; not on Hopper with "
        "1.0 or newer",
        cause="the {role} attends to {window} tokens in some layers, sequences reach {longest}: reused prefixes of "
        "longer prompts are switched off, or wrong in some releases{risk}",
        fix="write {way} {window} tokens",
        source="TensorRT-LLM issue #2912, PRs #2983 and #6379",
        find=_window_reuse,
        example=hit(
            "kv_cache.reuse", role="target", window=4096, longest=9216, risk="", way="reuse: false, or limits within"
        ),
    ),
)
