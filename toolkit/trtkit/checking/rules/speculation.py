"""Rules about draft-target speculation: reuse, acceptance, sizes, launch. Knows no tokenizers (rules/pairing)."""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.planning.model_plan import model_plan
from trtkit.planning.plan import PlanInput, round_costs
from trtkit.planning.speculation import break_even

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
    if deployment.speculation is None or not deployment.specs.keys() >= {"draft", "target"}:
        return
    draft_len = deployment.speculation.max_draft_len
    target, draft = (
        model_plan(role, deployment.specs[role], deployment.config, deployment.head_rows.get(role))
        for role in ("target", "draft")
    )
    costs = round_costs(target, draft, PlanInput(gpu=None, memory_bytes=None))
    even = break_even(draft_len, costs)
    if costs.draft_step > _HELPFUL_RATIO:
        pays = f"pay only from an acceptance of {even:.2f}" if even is not None else "never pay"
        yield hit("draft.checkpoint", percent=round(100 * costs.draft_step), draft_len=draft_len, pays=pays)


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
        cause="ranks: draft {draft}, target {target}; the server runs in orchestrator mode (--multi-model)",
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
        when="the draft reads more than an eighth of the bytes that the target reads per token",
        cause="the draft reads {percent} % of the bytes that the target reads per token; drafts of {draft_len} {pays}",
        fix="choose a smaller draft or a smaller max_draft_len; `trtkit plan` shows the gain of each",
        source="tensorrtllm_backend issue #498 (8B for 70B: no gain)",
        find=_large_draft,
        example=hit("draft.checkpoint", percent=32, draft_len=4, pays="pay only from an acceptance of 0.59"),
    ),
)
