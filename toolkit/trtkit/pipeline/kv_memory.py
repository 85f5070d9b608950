"""How two models share the memory of a GPU: the plan's figures, where a deployment needs them. Knows no parameter."""

from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.engines.placement import place
from trtkit.pipeline.request import BuildRequest
from trtkit.planning.gpus import find_gpu
from trtkit.planning.plan import PlanInput, make_plan
from trtkit.repository.llm_parameters import KvMemory


def planned_kv_memory(request: BuildRequest) -> dict[str, KvMemory]:
    """Role -> its share, for engines of a known GPU that two models share; else {}, and each takes what is left.

    Also {} when the plan says that not one sequence fits (MEMORY-FIT, which may have been ignored).
    """
    config = request.config
    gpu = find_gpu(config.gpu.name) if config.gpu else None
    if config.backend != "engine" or gpu is None or not place(config).shared:
        return {}
    specs = {role: read_model_spec(source.folder) for role, source in request.inputs.items()}
    solution = make_plan(config, specs, PlanInput(gpu=gpu, memory_bytes=None)).fit
    if solution is None or not solution.sequences:
        return {}
    limits = zip(solution.fractions, solution.max_tokens, strict=True)
    return {role: KvMemory(*limit) for role, limit in zip(config.models, limits, strict=True)}
