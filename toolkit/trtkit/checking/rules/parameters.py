"""Rules about the parameters of LLM models, by themselves and against the engines they name. Knows no ensemble."""

from collections.abc import Iterable, Iterator

from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checking.rules.agreement import reuses, with_engine
from trtkit.checking.subjects.repository import BLS, Repository, TritonModel

_BATCHING = frozenset({"inflight_fused_batching", "inflight_batching", "V1", "v1"})
_SCHEDULING = frozenset({"guaranteed_no_evict", "max_utilization"})
# Most of two fractions of one GPU; what is left covers activations.
_SHARED_FRACTIONS = 0.95


def _reuse_without_fmha(repository: Repository) -> Iterable[Hit]:
    for model, engine in with_engine(repository):
        if reuses(model, engine) and not engine.paged_context_fmha:
            yield hit(model.place("parameters.enable_kv_cache_reuse"), engine=engine.folder / "config.json")


def _drafts_without_reuse(repository: Repository) -> Iterable[Hit]:
    for model, engine in with_engine(repository):
        if engine.max_draft_len and not reuses(model, engine):
            yield hit(model.place("parameters.enable_kv_cache_reuse"), engine=engine.folder / "config.json")


def _draft_length(repository: Repository) -> Iterable[Hit]:
    bls, target = repository.models.get(BLS), repository.target
    engine = repository.engines.get(target.name) if target else None
    asked = bls.parameter("max_draft_len") if bls else None
    if bls is None or engine is None or asked is None or not asked.isdigit():
        return
    if int(asked) > engine.max_draft_len:
        yield hit(bls.place("parameters.max_draft_len"), asked=int(asked), accepted=engine.max_draft_len)


def _undrafted_target(repository: Repository) -> Iterable[Hit]:
    """Where the orchestrator names no draft length of its own; else SPEC-K says it."""
    target, bls = repository.target, repository.models.get(BLS)
    engine = repository.engines.get(target.name) if target else None
    if bls is not None and bls.parameter("max_draft_len") is not None:
        return
    if target is not None and engine is not None and repository.draft is not None and not engine.max_draft_len:
        yield hit(target.place("parameters.gpt_model_path"), draft=repository.draft.name)


def _values(repository: Repository) -> Iterable[Hit]:
    for model in repository.llm_models:
        for key, value, why in _bad_values(model):
            yield hit(model.place(f"parameters.{key}"), key=key, value=value, why=why)


def _bad_values(model: TritonModel) -> Iterator[tuple[str, str, str]]:
    """(key, value, reason) of parameters that the C++ backend throws at."""
    sinks, fraction = model.parameter("sink_token_length"), model.parameter("kv_cache_free_gpu_mem_fraction")
    if sinks is not None and _number(sinks) <= 0:
        yield "sink_token_length", sinks, "only positive values are taken; leave it out instead"
    if fraction is not None and not 0 < _number(fraction) < 1:
        yield "kv_cache_free_gpu_mem_fraction", fraction, "it must lie between 0 and 1, both excluded"
    cross = model.parameter("cross_kv_cache_fraction")
    if cross is not None and model.parameter("encoder_model_path") is None:
        yield "cross_kv_cache_fraction", cross, "it is for encoder-decoder models only"
    batching = model.parameter("gpt_model_type")
    if batching not in _BATCHING:
        yield "gpt_model_type", batching or "unset", f"it is one of {', '.join(sorted(_BATCHING))}"
    excluded = model.parameter("exclude_input_in_output")
    if excluded is not None and excluded.lower() not in ("true", "false"):
        yield "exclude_input_in_output", excluded, "it is true or false"


def _scheduling(repository: Repository) -> Iterable[Hit]:
    for model in repository.llm_models:
        policy = model.parameter("batch_scheduler_policy")
        if policy is not None and policy not in _SCHEDULING:
            yield hit(model.place("parameters.batch_scheduler_policy"), policy=policy)


def _excluded_input(repository: Repository) -> Iterable[Hit]:
    if repository.draft is None:
        return
    for model in repository.llm_models:
        if (model.parameter("exclude_input_in_output") or "false").lower() == "true":
            yield hit(model.place("parameters.exclude_input_in_output"), model=model.name)


def _fractions(repository: Repository) -> Iterable[Hit]:
    models = [model for model in (repository.target, repository.draft) if model is not None]
    if len(models) < 2 or not _share_a_gpu(*models):
        return
    if all(model.parameter("max_tokens_in_paged_kv_cache") is not None for model in models):
        return  # then each is kept to its own share, whichever loads first
    fractions = [_number(model.parameter("kv_cache_free_gpu_mem_fraction") or "0.9") for model in models]
    if sum(fractions) > _SHARED_FRACTIONS and not _reference(repository):
        yield hit(models[1].place("parameters.kv_cache_free_gpu_mem_fraction"), target=fractions[0], draft=fractions[1])


def _share_a_gpu(one: TritonModel, other: TritonModel) -> bool:
    """Whether two models name a common GPU; without a list a model takes the first ones."""
    devices = [set((model.parameter("gpu_device_ids") or "0").replace(";", ",").split(",")) for model in (one, other)]
    return bool(devices[0] & devices[1])


def _devices(repository: Repository) -> Iterable[Hit]:
    """GPU lists, one for each instance, that do not name a GPU of its own for every rank of every instance."""
    for model, engine in with_engine(repository):
        world, written = engine.info.world_size, model.parameter("gpu_device_ids")
        lists = [named.split(",") for named in written.split(";")] if written and not engine.is_reference else []
        everywhere = [device for named in lists for device in named]
        numbered = all(device.strip().isdigit() for device in everywhere)
        if not numbered or len(set(everywhere)) < len(everywhere) or any(len(named) != world for named in lists):
            yield hit(model.place("parameters.gpu_device_ids"), model=model.name, ids=written, world=world)


def _reference(repository: Repository) -> bool:
    return bool(repository.engines) and all(engine.is_reference for engine in repository.engines.values())


def _number(text: str) -> float:
    """The value of a number; what is none counts as out of every range."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


_REUSE = "tensorrt_llm/config.pbtxt:parameters.enable_kv_cache_reuse"
PARAMETER_RULES: tuple[Rule[Repository], ...] = (
    Rule(
        code="KV-REUSE",
        severity="error",
        looks_at="repository",
        when="a model reuses KV blocks, and its engine was built without paged context FMHA",
        cause="reuse is on here, but {engine} says use_paged_context_fmha false",
        fix="build the engine with use_paged_context_fmha, or write enable_kv_cache_reuse false",
        source="tensorrtllm_backend issue #271",
        find=_reuse_without_fmha,
        example=hit(_REUSE, engine="engines/target/config.json"),
    ),
    Rule(
        code="REPO-SPEC-REUSE",
        severity="error",
        looks_at="repository",
        when="a target engine takes drafts, and reuse is off",
        cause="{engine} takes drafts, and such an engine refuses to load when KV block reuse is off",
        fix="write enable_kv_cache_reuse true",
        source="trtGptModelInflightBatching.cpp",
        find=_drafts_without_reuse,
        example=hit(_REUSE, engine="engines/target/config.json"),
    ),
    Rule(
        code="SPEC-K",
        severity="error",
        looks_at="repository",
        when="the orchestrator may send more draft tokens than the target engine accepts",
        cause="the target engine accepts {accepted} draft tokens, {asked} are asked for",
        fix="build the target with max_draft_len {asked}, or lower it here",
        source="tensorrtllm_backend issue #473",
        find=_draft_length,
        example=hit("tensorrt_llm_bls/config.pbtxt:parameters.max_draft_len", accepted=0, asked=5),
    ),
    Rule(
        code="REPO-NO-DRAFTS",
        severity="error",
        looks_at="repository",
        when="there is a draft model, the target engine was built for none, and no max_draft_len is stated",
        cause="the engine accepts 0 draft tokens, but the repository has a draft model ({draft})",
        fix="build the target with --speculative_decoding_mode draft_tokens_external and --max_draft_len",
        source="tensorrtllm_backend issue #473",
        find=_undrafted_target,
        example=hit("tensorrt_llm/config.pbtxt:parameters.gpt_model_path", draft="tensorrt_llm_draft"),
    ),
    Rule(
        code="REPO-VALUE",
        severity="error",
        looks_at="repository",
        when="a parameter has a value that the backend throws at",
        cause="{key} is {value!r}: {why}",
        fix="correct it, or leave the parameter out",
        source="kvCacheConfig.cpp; model_instance_state.cc",
        find=_values,
        example=hit(
            "tensorrt_llm/config.pbtxt:parameters.sink_token_length",
            key="sink_token_length",
            value="0",
            why="only positive values are taken; leave it out instead",
        ),
    ),
    Rule(
        code="REPO-POLICY",
        severity="warning",
        looks_at="repository",
        when="batch_scheduler_policy has an unknown value",
        cause="batch_scheduler_policy {policy} is unknown; the backend falls back to guaranteed_no_evict",
        fix="write guaranteed_no_evict or max_utilization",
        source="model_instance_state.cc",
        find=_scheduling,
        example=hit("tensorrt_llm/config.pbtxt:parameters.batch_scheduler_policy", policy="fair"),
    ),
    Rule(
        code="REPO-EXCLUDED",
        severity="error",
        looks_at="repository",
        when="exclude_input_in_output is true in a repository with a draft model",
        cause="{model} leaves out the prompt, but the draft-target loop cuts drafts out of the whole sequence",
        fix="write exclude_input_in_output false",
        source="tensorrt_llm_bls/1/lib/decode.py",
        find=_excluded_input,
        example=hit("tensorrt_llm/config.pbtxt:parameters.exclude_input_in_output", model="tensorrt_llm"),
    ),
    Rule(
        code="REPO-DEVICES",
        severity="error",
        looks_at="repository",
        when="gpu_device_ids does not number one GPU for every rank of the engine, or has one twice, be it in the "
        "lists of two instances",
        cause="{model} names the GPUs {ids}; its engine has world size {world}, and each rank needs one of its own",
        fix="name as many different GPUs by their numbers (0,1 for two ranks), or leave gpu_device_ids out",
        source="ParallelConfig takes as many device ids as there are ranks; tensorrtllm_backend issue #166",
        find=_devices,
        example=hit("tensorrt_llm/config.pbtxt:parameters.gpu_device_ids", model="tensorrt_llm", ids="0,1", world=4),
    ),
    Rule(
        code="REPO-FRACTION",
        severity="warning",
        looks_at="repository",
        when="two models share a GPU without limits in tokens, and their memory fractions add up to more than 0.95",
        cause="target and draft share a GPU with fractions {target:g} and {draft:g}; the one loaded second starves",
        fix="take fractions and max_tokens_in_paged_kv_cache of `trtkit plan`, or at most a half each",
        source="TensorRT-LLM issues #486, #2034, #1188",
        find=_fractions,
        example=hit("tensorrt_llm_draft/config.pbtxt:parameters.kv_cache_free_gpu_mem_fraction", target=0.9, draft=0.9),
    ),
)
