"""Rules about the GPUs: known, enough of them, able to run the number formats. Knows SM numbers, measures nothing."""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.engines.placement import place
from trtkit.planning.gpus import find_gpu, nearest_names

# gpus_per_node of the mapping that the conversion writes, and TensorRT-LLM's default.
GPUS_PER_NODE = 8

# Weight format -> the lowest SM that has its kernels.
_MIN_SM_OF = {"fp8": 89, "fp8_rowwise": 89, "w4a8_awq": 89, "nvfp4": 100}
# Formats that the builder of TensorRT-LLM rejects for 100 <= SM < 120.
_NOT_ON_BLACKWELL = frozenset({"int8_weight_only", "int4_weight_only", "int8_smoothquant", "fp8_rowwise"})


def _unknown(deployment: Deployment) -> Iterable[Hit]:
    gpu = deployment.config.gpu
    if gpu is not None and find_gpu(gpu.name) is None:
        near = nearest_names(gpu.name)
        yield hit("gpu.name", name=gpu.name, hint=f"did you mean {' or '.join(near)}? " if near else "")


def _too_few(deployment: Deployment) -> Iterable[Hit]:
    gpu = deployment.config.gpu
    if gpu is None:
        return
    for role, model in deployment.config.models.items():
        ranks = model.tensor_parallel * model.pipeline_parallel
        if ranks > gpu.count:
            yield hit(f"{role}.tensor_parallel", role=role, ranks=ranks, count=gpu.count)


def _several_nodes(deployment: Deployment) -> Iterable[Hit]:
    target = deployment.config.target
    # The LLM API runs the draft on the target's ranks.
    own = target.tensor_parallel * target.pipeline_parallel
    gpus = own if deployment.backend == "llmapi" else place(deployment.config).num_gpus
    if deployment.backend != "reference" and gpus > GPUS_PER_NODE:
        yield hit("gpu.count", gpus=gpus, node=GPUS_PER_NODE)


def _format_needs_newer(deployment: Deployment) -> Iterable[Hit]:
    gpu = deployment.gpu
    for role, model in deployment.config.models.items():
        least = _MIN_SM_OF.get(model.quantization, 0)
        if gpu is not None and gpu.sm < least and deployment.backend != "reference":
            yield hit(f"{role}.quantization", format=model.quantization, least=least, gpu=gpu.name, sm=gpu.sm)


def _format_left_blackwell(deployment: Deployment) -> Iterable[Hit]:
    gpu = deployment.gpu
    if gpu is None or not 100 <= gpu.sm < 120 or deployment.backend != "engine":
        return
    for role, model in deployment.config.models.items():
        if model.quantization in _NOT_ON_BLACKWELL:
            yield hit(f"{role}.quantization", format=model.quantization, gpu=gpu.name, sm=gpu.sm)
    if deployment.config.kv_cache.dtype == "int8":
        yield hit("kv_cache.dtype", format="int8 KV", gpu=gpu.name, sm=gpu.sm)


GPU_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="GPU-UNKNOWN",
        severity="error",
        looks_at="YAML",
        when="gpu.name is not in the catalogue",
        cause="{name} is no GPU of the catalogue",
        fix="{hint}`trtkit plan --list-gpus` lists them; `--gpu-spec` describes another one to plan",
        source="data sheets named in the catalogue",
        find=_unknown,
        example=hit("gpu.name", name="h1000", hint="did you mean h100-sxm-80gb? "),
    ),
    Rule(
        code="GPU-COUNT",
        severity="error",
        looks_at="YAML",
        when="a model has more ranks (tensor_parallel x pipeline_parallel) than there are GPUs",
        cause="the {role} has {ranks} ranks, and gpu.count is {count}; each rank needs a GPU of its own",
        fix="lower the parallelism of the {role}, or set gpu.count to {ranks}",
        source="tensorrt_llm/mapping.py: world_size = tp * pp * cp",
        find=_too_few,
        example=hit("target.tensor_parallel", role="target", ranks=8, count=4),
    ),
    Rule(
        code="GPU-NODES",
        severity="error",
        looks_at="YAML",
        when="the models are placed on more GPUs than one machine has",
        cause="the models take {gpus} GPUs, more than the {node} of one machine; the scripts that trtkit writes start "
        "one machine, and the orchestrator of a draft-target pair spawns its workers on its own only",
        fix="quantise the target, lower the parallelism, or leave the draft on the target's GPUs (a smaller gpu.count)",
        source="mapping.py: gpus_per_node 8; orchestrator mode: MPI_Comm_Spawn; tensorrtllm_backend issues #283, #541",
        find=_several_nodes,
        example=hit("gpu.count", gpus=16, node=8),
    ),
    Rule(
        code="QUANT-SM",
        severity="error",
        looks_at="YAML",
        when="a weight format has no kernels on this GPU: fp8, fp8_rowwise, w4a8_awq below SM 89, nvfp4 below SM 100",
        cause="{format} weights need SM {least}; {gpu} is SM {sm}",
        fix="choose a format this GPU runs (int4_awq, int8_weight_only, none), or a newer GPU",
        source="quantization support matrix; builder.py",
        find=_format_needs_newer,
        example=hit("target.quantization", format="fp8", least=89, gpu="a100-sxm-80gb", sm=80),
    ),
    Rule(
        code="QUANT-BLACKWELL",
        severity="error",
        looks_at="YAML",
        when="INT8 or INT4 weight-only, SmoothQuant, per-channel FP8 or an INT8 KV cache on 100 <= SM < 120",
        cause="the builder rejects {format} on {gpu} (SM {sm})",
        fix="use fp8 or nvfp4 weights, and an fp8 KV cache",
        source="builder.py: RuntimeError for 100 <= SM < 120",
        find=_format_left_blackwell,
        example=hit("target.quantization", format="int8_weight_only", gpu="b200-180gb", sm=100),
    ),
)
