"""Rules about what the LLM API (PyTorch backend) does otherwise than the engine flow. Knows nothing of engines."""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.conversion.options import HF_QUANTIZATIONS

# What a release without the key tokens_per_block uses.
FIXED_BLOCK_SIZE = 32


def _pipeline(deployment: Deployment) -> Iterable[Hit]:
    if deployment.backend == "llmapi" and deployment.speculation:
        stages = deployment.config.target.pipeline_parallel
        if stages > 1:
            yield hit("target.pipeline_parallel", stages=stages)


def _logits(deployment: Deployment) -> Iterable[Hit]:
    if deployment.backend == "llmapi" and deployment.speculation and deployment.speculation.acceptance == "logits":
        yield hit("speculation.acceptance")


def _reuse(deployment: Deployment) -> Iterable[Hit]:
    release = deployment.release
    loses_reuse = release is not None and release.llm_api is not None and not release.llm_api.reuse_with_draft
    if deployment.backend == "llmapi" and deployment.speculation and loses_reuse and deployment.config.kv_cache.reuse:
        assert release is not None
        yield hit("kv_cache.reuse", version=release.version)


def _draft_ranks(deployment: Deployment) -> Iterable[Hit]:
    draft, target = deployment.config.draft, deployment.config.target
    if deployment.backend == "llmapi" and draft is not None and draft.tensor_parallel != target.tensor_parallel:
        yield hit("draft.tensor_parallel", draft=draft.tensor_parallel, target=target.tensor_parallel)


def _block_size(deployment: Deployment) -> Iterable[Hit]:
    release, block_size = deployment.release, deployment.config.kv_cache.block_size
    if deployment.backend != "llmapi" or release is None or release.llm_api is None:
        return
    if block_size != FIXED_BLOCK_SIZE and "tokens_per_block" not in release.llm_api.kv_cache_keys:
        yield hit("kv_cache.block_size", version=release.version, block_size=block_size, fixed=FIXED_BLOCK_SIZE)


def _adaptive(deployment: Deployment) -> Iterable[Hit]:
    if deployment.backend == "llmapi" and deployment.speculation and deployment.speculation.adaptive:
        yield hit("speculation.adaptive")


def _padding(deployment: Deployment) -> Iterable[Hit]:
    if deployment.backend == "llmapi" and deployment.speculation and deployment.speculation.pad_draft_vocab:
        yield hit("speculation.pad_draft_vocab")


def _draft_as_target(deployment: Deployment) -> Iterable[Hit]:
    draft, target = deployment.config.draft, deployment.config.target
    if deployment.backend != "llmapi" or draft is None:
        return
    if draft.revision is not None:
        yield hit("draft.revision", what="a revision of its own")
    if draft.dtype != target.dtype:
        yield hit("draft.dtype", what=f"dtype {draft.dtype} beside the target's {target.dtype}")


def _other_weights(deployment: Deployment) -> Iterable[Hit]:
    """The PyTorch backend loads weights as they are stored; a build quantises those that are stored unquantised."""
    if deployment.backend != "llmapi":
        return
    for role, stored in deployment.stored.items():
        asked = deployment.config.models[role].quantization
        is_made = stored == "none" and asked in HF_QUANTIZATIONS
        if stored != asked and not is_made:
            yield hit(f"{role}.quantization", role=role, stored=stored, asked=asked, made=", ".join(HF_QUANTIZATIONS))


LLMAPI_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="LLMAPI-PP",
        severity="error",
        looks_at="YAML",
        when="backend llmapi with draft_target and more than one pipeline stage",
        cause="the LLM API does not speculate over {stages} pipeline stages",
        fix="write target.pipeline_parallel: 1 and spread the target by tensor_parallel",
        source="feature matrix of the PyTorch backend, row of linear speculative decoding",
        find=_pipeline,
        example=hit("target.pipeline_parallel", stages=2),
    ),
    Rule(
        code="LLMAPI-LOGITS",
        severity="error",
        looks_at="YAML",
        when="backend llmapi with acceptance: logits",
        cause="the LLM API accepts drafts by token ids; rejection sampling is a prototype there",
        fix="write acceptance: token",
        source="llm_args.py: use_rejection_sampling",
        find=_logits,
        example=hit("speculation.acceptance"),
    ),
    Rule(
        code="LLMAPI-REUSE",
        severity="warning",
        looks_at="YAML",
        when="backend llmapi 1.0 to 1.2 with draft_target and kv_cache.reuse",
        cause="TensorRT-LLM {version} runs the draft as a second model and switches block reuse off",
        fix="write kv_cache.reuse: false, or use a 1.3 release",
        source="TensorRT-LLM PRs #5448, #11758",
        find=_reuse,
        example=hit("kv_cache.reuse", version="1.2.1"),
    ),
    Rule(
        code="LLMAPI-DRAFT-TP",
        severity="warning",
        looks_at="YAML",
        when="backend llmapi with different tensor_parallel of draft and target",
        cause="the LLM API runs the draft on the target's ranks; tensor_parallel {draft} of the draft is not used",
        fix="write draft.tensor_parallel: {target}",
        source="TensorRT-LLM PR #11758",
        find=_draft_ranks,
        example=hit("draft.tensor_parallel", draft=1, target=4),
    ),
    Rule(
        code="LLMAPI-BLOCK",
        severity="error",
        looks_at="YAML",
        when="backend llmapi with another block size than 32, and a release without a key for it",
        cause="the LLM API of {version} has blocks of {fixed} tokens and no key for {block_size}",
        fix="write kv_cache.block_size: {fixed}, or use 1.2 or newer",
        source="llm_args.py: KvCacheConfig.tokens_per_block",
        find=_block_size,
        example=hit("kv_cache.block_size", version="1.0.0", block_size=64, fixed=32),
    ),
    Rule(
        code="LLMAPI-ADAPTIVE",
        severity="error",
        looks_at="YAML",
        when="backend llmapi with speculation.adaptive",
        cause="the LLM API drafts with a fixed length",
        fix="write adaptive: false, or use backend: engine",
        source="llm_args.py: max_draft_len",
        find=_adaptive,
        example=hit("speculation.adaptive"),
    ),
    Rule(
        code="LLMAPI-PADDING",
        severity="error",
        looks_at="YAML",
        when="backend llmapi with pad_draft_vocab",
        cause="the LLM API compares token ids only, and takes the draft as it is",
        fix="write pad_draft_vocab: false, or use backend: engine",
        source="llm_args.py: DraftTargetDecodingConfig",
        find=_padding,
        example=hit("speculation.pad_draft_vocab"),
    ),
    Rule(
        code="LLMAPI-DRAFT",
        severity="error",
        looks_at="YAML",
        when="backend llmapi with a revision or a dtype for the draft alone",
        cause="the LLM API takes revision and dtype of the target only; the draft asks for {what}",
        fix="give the draft as a folder, and write the target's dtype",
        source="llm_args.py: DraftTargetDecodingConfig names a path and nothing else",
        find=_draft_as_target,
        example=hit("draft.dtype", what="dtype float16 beside the target's bfloat16"),
    ),
    Rule(
        code="LLMAPI-QUANT",
        severity="error",
        looks_at="YAML",
        when="backend llmapi, and the weights are stored in another format than asked for, from which that is not made",
        cause="the {role}'s weights are stored as {stored}, and no {asked} is made of them for the LLM API",
        fix="write {role}.quantization: {stored}, or give an unquantised checkpoint and one of {made}",
        source="the PyTorch backend loads weights as they are stored (hf_quant_config.json)",
        find=_other_weights,
        example=hit("target.quantization", role="target", stored="fp8", asked="nvfp4", made="fp8, nvfp4"),
    ),
)
