"""Rules about one model against how it is to be cut and served. Knows no tokenizer, weight format or KV cache."""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checkpoints.source import expanded, is_hub_id, is_of_the_demo
from trtkit.conversion.parallelism import legal_tensor_parallel, why_not_tensor_parallel
from trtkit.engines.release import parse_version

# Architecture -> first release whose engine flow builds it (release notes); the others are older than 0.17.
_ENGINE_SINCE = {"Gemma3ForCausalLM": "0.19.0", "Qwen3ForCausalLM": "1.0.0", "Qwen3MoeForCausalLM": "1.0.0"}
# Architectures whose draft-target deployments users report as broken, or that mix windows and soft caps.
_UNTESTED_PAIRS = frozenset({"Gemma2ForCausalLM", "Gemma3ForCausalLM"})


def _absent(deployment: Deployment) -> Iterable[Hit]:
    for role, model in deployment.config.models.items():
        if role not in deployment.folders and is_hub_id(model.checkpoint):
            way = "run `trtkit demo`" if is_of_the_demo(model.checkpoint) else "fetch it (`trtkit build` does)"
            yield hit(f"{role}.checkpoint", role=role, name=model.checkpoint, way=way)


def _no_folder(deployment: Deployment) -> Iterable[Hit]:
    for role, model in deployment.config.models.items():
        if role not in deployment.folders and not is_hub_id(model.checkpoint):
            yield hit(f"{role}.checkpoint", name=model.checkpoint)


def _unread_revision(deployment: Deployment) -> Iterable[Hit]:
    for role, folder in deployment.folders.items():
        model = deployment.config.models[role]
        is_folder = not is_hub_id(model.checkpoint) or folder == expanded(model.checkpoint)
        if model.revision is not None and is_folder:
            yield hit(f"{role}.revision", revision=model.revision, name=model.checkpoint)


def _tensor_parallel(deployment: Deployment) -> Iterable[Hit]:
    for role, model, spec in deployment.known():
        reason = why_not_tensor_parallel(spec, model.tensor_parallel, model.expert_parallel)
        if reason is not None:
            legal = legal_tensor_parallel(spec)
            yield hit(
                f"{role}.tensor_parallel",
                role=role,
                tp=model.tensor_parallel,
                reason=reason,
                legal=", ".join(map(str, legal)),
            )


def _pipeline_parallel(deployment: Deployment) -> Iterable[Hit]:
    for role, model, spec in deployment.known():
        if model.pipeline_parallel > spec.num_layers:
            yield hit(f"{role}.pipeline_parallel", role=role, stages=model.pipeline_parallel, layers=spec.num_layers)


def _expert_parallel(deployment: Deployment) -> Iterable[Hit]:
    for role, model, spec in deployment.known():
        experts = spec.moe.num_experts if spec.moe else 0
        if model.expert_parallel > 1 and (not experts or experts % model.expert_parallel):
            yield hit(f"{role}.expert_parallel", role=role, ep=model.expert_parallel, experts=experts)


def _release(deployment: Deployment) -> Iterable[Hit]:
    release = deployment.release
    if deployment.backend != "engine" or release is None:
        return
    for role, _, spec in deployment.known():
        since = _ENGINE_SINCE.get(spec.architecture)
        if since is not None and release.order < (parse_version(since) or ()):
            yield hit("tensorrt_llm", role=role, architecture=spec.architecture, since=since, version=release.version)


def _untested(deployment: Deployment) -> Iterable[Hit]:
    spec = deployment.specs.get("target")
    if deployment.speculation and deployment.backend != "reference" and spec is not None:
        if spec.architecture in _UNTESTED_PAIRS:
            yield hit("target.checkpoint", architecture=spec.architecture)


def _float32_draft_target(deployment: Deployment) -> Iterable[Hit]:
    if deployment.backend == "engine" and deployment.speculation:
        for role, model in deployment.config.models.items():
            if model.dtype == "float32" and model.quantization == "none":
                yield hit(f"{role}.dtype", role=role)


def _narrower_range(deployment: Deployment) -> Iterable[Hit]:
    for role, model, spec in deployment.known():
        if spec.dtype == "bfloat16" and model.dtype == "float16":
            yield hit(f"{role}.dtype", role=role)


MODEL_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="CKPT-ABSENT",
        severity="note",
        looks_at="YAML",
        when="a checkpoint is neither a folder nor in trtkit's cache, and may be a hub id",
        cause="{name} is no folder here and not in trtkit's cache, so nothing that depends on the {role}'s files was "
        "checked",
        fix="{way}, then check again",
        source="trtkit",
        find=_absent,
        example=hit(
            "target.checkpoint",
            role="target",
            name="meta-llama/Llama-3.3-70B-Instruct",
            way="fetch it (`trtkit build` does)",
        ),
    ),
    Rule(
        code="CKPT-FOLDER",
        severity="error",
        looks_at="YAML",
        when="a checkpoint is no folder, and cannot be a hub id",
        cause="there is no folder {name}; a path starts at the working directory, not at the YAML",
        fix="give the path of a checkpoint folder, or a hub id such as org/model",
        source="trtkit",
        find=_no_folder,
        example=hit("target.checkpoint", name="../models/llama"),
    ),
    Rule(
        code="CKPT-REVISION",
        severity="warning",
        looks_at="YAML",
        when="a revision is written for a checkpoint that is a folder",
        cause="{name} is a folder, which has no revision {revision}: what lies there is taken",
        fix="remove revision, or name the hub id",
        source="trtkit",
        find=_unread_revision,
        example=hit("target.revision", revision="v1.0", name="models/llama"),
    ),
    Rule(
        code="MODEL-TP",
        severity="error",
        looks_at="YAML",
        when="tensor_parallel does not divide heads, KV heads (or is no multiple of them) or the intermediate size",
        cause="the {role} cannot be cut over {tp} ranks: {reason}",
        fix="write tensor_parallel: one of {legal}",
        source="models/*/convert.py: split and dup_kv_weight; TensorRT-LLM issues #2198, #2310",
        find=_tensor_parallel,
        example=hit(
            "target.tensor_parallel",
            role="target",
            tp=8,
            reason="28 attention heads cannot be shared equally",
            legal="1, 2, 4",
        ),
    ),
    Rule(
        code="MODEL-PP",
        severity="error",
        looks_at="YAML",
        when="there are more pipeline stages than layers",
        cause="the {role} has {layers} layers for {stages} pipeline stages",
        fix="write pipeline_parallel: {layers} or less",
        source="mapping.py: layers per stage",
        find=_pipeline_parallel,
        example=hit("draft.pipeline_parallel", role="draft", layers=4, stages=8),
    ),
    Rule(
        code="MODEL-EP",
        severity="error",
        looks_at="YAML",
        when="expert_parallel does not divide the number of experts, or the model has none",
        cause="expert_parallel {ep} does not divide the {experts} experts of the {role}",
        fix="write expert_parallel: 1, or a divisor of {experts}",
        source="mapping.py: moe_ep_size; experts per rank are contiguous blocks",
        find=_expert_parallel,
        example=hit("target.expert_parallel", role="target", ep=3, experts=8),
    ),
    Rule(
        code="MODEL-VERSION",
        severity="error",
        looks_at="YAML",
        when="the architecture entered the engine flow after this release",
        cause="TensorRT-LLM {version} builds no engine of {architecture} (the {role}); {since} was the first",
        fix="write tensorrt_llm: {since} or newer",
        source="release notes of 0.19 and 1.0",
        find=_release,
        example=hit("tensorrt_llm", role="target", architecture="Qwen3ForCausalLM", since="1.0.0", version="0.21.0"),
    ),
    Rule(
        code="MODEL-UNTESTED",
        severity="warning",
        looks_at="pair",
        when="draft_target with a Gemma 2 or Gemma 3 target on TensorRT-LLM",
        cause="draft-target with {architecture} is reported to fail: alternating windows and soft caps",
        fix="run `trtkit parity check` before you rely on it",
        source="TensorRT-LLM issue #2804",
        find=_untested,
        example=hit("target.checkpoint", architecture="Gemma2ForCausalLM"),
    ),
    Rule(
        code="SPEC-DTYPE",
        severity="error",
        looks_at="YAML",
        when="draft_target on engines in float32",
        cause="draft-target engines are float16, bfloat16 or FP8; the {role} is float32",
        fix="write {role}.dtype: bfloat16",
        source="examples/draft_target_model/README.md",
        find=_float32_draft_target,
        example=hit("target.dtype", role="target"),
    ),
    Rule(
        code="MODEL-RANGE",
        severity="note",
        looks_at="YAML",
        when="a checkpoint stored in bfloat16 is converted to float16",
        cause="the {role}'s weights are bfloat16; float16 holds values up to 65504 only, and activations may overflow",
        fix="write {role}.dtype: bfloat16 unless the GPU lacks it",
        source="IEEE 754 binary16",
        find=_narrower_range,
        example=hit("target.dtype", role="target"),
    ),
)
