"""Rules about draft-target speculation: reuse, acceptance, sizes, launch. Knows no tokenizers (rules/pairing)."""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit

MAX_USEFUL_BATCH = 64
_HELPFUL_RATIO = 1 / 8


def _needs_reuse(deployment: Deployment) -> Iterable[Hit]:
    if deployment.backend == "engine" and deployment.speculation and not deployment.config.kv_cache.reuse:
        yield hit("kv_cache.reuse")


def _large_batch(deployment: Deployment) -> Iterable[Hit]:
    size = deployment.config.limits.max_batch_size
    if deployment.speculation and size > MAX_USEFUL_BATCH:
        yield hit("limits.max_batch_size", size=size, most=MAX_USEFUL_BATCH)


def _long_draft(deployment: Deployment) -> Iterable[Hit]:
    longest = deployment.config.limits.max_output_len
    if deployment.config.max_draft_len >= longest:
        yield hit("speculation.max_draft_len", draft_len=deployment.config.max_draft_len, longest=longest)


def _orchestrator(deployment: Deployment) -> Iterable[Hit]:
    draft, target = deployment.config.draft, deployment.config.target
    if deployment.backend == "engine" and draft is not None:
        ranks = [model.tensor_parallel * model.pipeline_parallel for model in (draft, target)]
        if ranks[0] != ranks[1]:
            yield hit("draft.tensor_parallel", draft=ranks[0], target=ranks[1])


def _spread_draft(deployment: Deployment) -> Iterable[Hit]:
    draft = deployment.config.draft
    if deployment.backend == "engine" and draft is not None and draft.tensor_parallel > 2:
        yield hit("draft.tensor_parallel", ranks=draft.tensor_parallel)


def _large_draft(deployment: Deployment) -> Iterable[Hit]:
    if deployment.specs.keys() >= {"draft", "target"}:
        ratio = linear_elements(deployment, "draft") / linear_elements(deployment, "target")
        if ratio > _HELPFUL_RATIO:
            yield hit("draft.checkpoint", percent=round(100 * ratio))


def linear_elements(deployment: Deployment, role: str) -> int:
    """Weights that one token multiplies with: the layers and the head; what decoding reads from memory."""
    spec = deployment.specs[role]
    attention = spec.hidden_size * spec.head_dim * (2 * spec.num_q_heads + 2 * spec.num_kv_heads)
    if spec.moe is None:
        mlp = 3 * spec.hidden_size * spec.intermediate_size
    else:
        shared = 3 * spec.hidden_size * spec.moe.shared_intermediate_size
        mlp = 3 * spec.hidden_size * spec.moe.intermediate_size * spec.moe.top_k + shared
    return spec.num_layers * (attention + mlp) + spec.hidden_size * spec.vocab_size


SPECULATION_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="SPEC-REUSE",
        severity="error",
        looks_at="YAML",
        when="draft_target on engines with kv_cache.reuse false",
        cause="a draft-target engine refuses to load when KV block reuse is off",
        fix="write kv_cache.reuse: true",
        source="trtGptModelInflightBatching.cpp: KV cache block reuse must be enabled for a target model",
        find=_needs_reuse,
        example=hit("kv_cache.reuse"),
    ),
    Rule(
        code="SPEC-BATCH",
        severity="warning",
        looks_at="YAML",
        when="draft_target with max_batch_size above 64",
        cause="with {size} sequences in flight the GPU is busy without drafts, and drafts cost more than they save",
        fix="write max_batch_size: {most} or less, or speculation: {{kind: none}}; `trtkit plan` shows the crossover",
        source="Truss warns above 64; vLLM issue #17984",
        find=_large_batch,
        example=hit("limits.max_batch_size", size=256, most=64),
    ),
    Rule(
        code="SPEC-LENGTH",
        severity="error",
        looks_at="YAML",
        when="max_draft_len is not smaller than max_output_len",
        cause="drafts of {draft_len} tokens never fit into answers of {longest}",
        fix="lower speculation.max_draft_len, or raise limits.max_output_len",
        source="the draft length is cut to the remaining budget minus one",
        find=_long_draft,
        example=hit("speculation.max_draft_len", draft_len=16, longest=16),
    ),
    Rule(
        code="SPEC-LAUNCH",
        severity="note",
        looks_at="YAML",
        when="draft and target have different numbers of ranks",
        cause="the draft has {draft} ranks, the target {target}: the server runs in orchestrator mode (--multi-model)",
        fix="nothing to do; orchestrator mode is a little slower than leader mode",
        source="TensorRT-LLM PR #3797, issue #2838",
        find=_orchestrator,
        example=hit("draft.tensor_parallel", draft=1, target=4),
    ),
    Rule(
        code="SPEC-DRAFT-TP",
        severity="warning",
        looks_at="YAML",
        when="the draft is spread over more than two ranks",
        cause="the draft is spread over {ranks} ranks; a small model waits longer for them than it computes",
        fix="write draft.tensor_parallel: 1",
        source="tensorrtllm_backend issue #498",
        find=_spread_draft,
        example=hit("draft.tensor_parallel", ranks=4),
    ),
    Rule(
        code="SPEC-DRAFT-SIZE",
        severity="warning",
        looks_at="pair",
        when="the draft reads more than an eighth of the target's weights per token",
        cause="the draft reads {percent} % of the weights that the target reads per token; that rarely pays",
        fix="choose a smaller draft; `trtkit plan` shows the acceptance it would need",
        source="tensorrtllm_backend issue #498 (8B for 70B: no gain)",
        find=_large_draft,
        example=hit("draft.checkpoint", percent=38),
    ),
)
