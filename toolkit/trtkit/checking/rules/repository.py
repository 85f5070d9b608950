"""Rules about the models of a Triton repository one by one, and against their engines. Knows no edges (rules/edges)."""

from collections import Counter
from collections.abc import Iterable, Iterator

from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checking.subjects.engine import EngineFolder
from trtkit.checking.subjects.repository import BLS, FILE, Repository, TritonModel
from trtkit.engines.release import find_release

_BATCHING = frozenset({"inflight_fused_batching", "inflight_batching", "V1", "v1"})
_SCHEDULING = frozenset({"guaranteed_no_evict", "max_utilization"})
# Most of two fractions of one GPU; what is left covers activations.
_SHARED_FRACTIONS = 0.95


def _models(repository: Repository) -> Iterator[TritonModel]:
    yield from repository.models.values()


def _names(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        if model.name != model.folder.name:
            yield hit(_place(model, "name"), name=model.name, folder=model.folder.name)


def _twice(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        for kind, ports in (("input", model.inputs), ("output", model.outputs)):
            for name, count in Counter(port.name for port in ports).items():
                if count > 1:
                    yield hit(_place(model, kind), name=name, count=count)


def _no_version(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        if not model.versions:
            yield hit(model.folder.name, model=model.name)


def _no_program(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        if model.backend == "python" and model.versions and not model.has_program:
            yield hit(model.folder.name, model=model.name)


def _decoupled(repository: Repository) -> Iterable[Hit]:
    bls = repository.models.get(BLS)
    for model in repository.llm_models if bls else ():
        if bls is not None and bls.decoupled != model.decoupled:
            yield hit(
                _place(bls, "model_transaction_policy.decoupled"),
                bls=_flag(bls.decoupled),
                model=model.name,
                other=_flag(model.decoupled),
            )


def _order(repository: Repository) -> Iterable[Hit]:
    model = repository.models.get("postprocessing")
    streams = any(llm.decoupled for llm in repository.llm_models)
    if model is not None and streams and model.instances > 1 and not model.ordered:
        yield hit(_place(model, "instance_group.count"), count=model.instances)


def _paths(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        for key in ("gpt_model_path", "tokenizer_dir"):
            path = model.parameter(key)
            if path is not None and not path.startswith("/") and not repository.resolve(path).is_dir():
                yield hit(_place(model, f"parameters.{key}"), path=path, base=repository.base)


def _foreign_paths(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        for key in ("gpt_model_path", "tokenizer_dir"):
            path = model.parameter(key)
            if path is not None and path.startswith("/") and not repository.resolve(path).is_dir():
                yield hit(_place(model, f"parameters.{key}"), path=path)


def _no_engine_path(repository: Repository) -> Iterable[Hit]:
    for model in repository.llm_models:
        if model.parameter("gpt_model_path") is None:
            yield hit(_place(model, "parameters.gpt_model_path"), model=model.name)


def _tokenizers(repository: Repository) -> Iterable[Hit]:
    for model in _models(repository):
        path = model.parameter("tokenizer_dir")
        folder = repository.resolve(path) if path else None
        if folder is not None and folder.is_dir() and not any(folder.glob("tokenizer*")):
            yield hit(_place(model, "parameters.tokenizer_dir"), path=path)


def _reuse_without_fmha(repository: Repository) -> Iterable[Hit]:
    for model, engine in _with_engine(repository):
        if reuses(model, engine) and not engine.paged_context_fmha:
            yield hit(_place(model, "parameters.enable_kv_cache_reuse"), engine=engine.folder / "config.json")


def _drafts_without_reuse(repository: Repository) -> Iterable[Hit]:
    for model, engine in _with_engine(repository):
        if engine.max_draft_len and not reuses(model, engine):
            yield hit(_place(model, "parameters.enable_kv_cache_reuse"), engine=engine.folder / "config.json")


def reuses(model: TritonModel, engine: EngineFolder) -> bool:
    """enable_kv_cache_reuse; unset means what the release of the engine takes (true from 0.19 on)."""
    written = model.parameter("enable_kv_cache_reuse")
    if written is not None:
        return written.lower() == "true"
    release = find_release(engine.info.version)
    return release is not None and release.triton is not None and release.triton.reuse_default


def _draft_length(repository: Repository) -> Iterable[Hit]:
    bls, target = repository.models.get(BLS), repository.target
    engine = repository.engines.get(target.name) if target else None
    asked = bls.parameter("max_draft_len") if bls else None
    if bls is None or engine is None or asked is None or not asked.isdigit():
        return
    if int(asked) > engine.max_draft_len:
        yield hit(_place(bls, "parameters.max_draft_len"), asked=int(asked), accepted=engine.max_draft_len)


def _undrafted_target(repository: Repository) -> Iterable[Hit]:
    target = repository.target
    engine = repository.engines.get(target.name) if target else None
    if target is not None and engine is not None and repository.draft is not None and not engine.max_draft_len:
        yield hit(_place(target, "parameters.gpt_model_path"), draft=repository.draft.name)


def _values(repository: Repository) -> Iterable[Hit]:
    for model in repository.llm_models:
        for key, value, why in _bad_values(model):
            yield hit(_place(model, f"parameters.{key}"), key=key, value=value, why=why)


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
    if batching is not None and batching not in _BATCHING:
        yield "gpt_model_type", batching, f"it is one of {', '.join(sorted(_BATCHING))}"
    excluded = model.parameter("exclude_input_in_output")
    if excluded is not None and excluded.lower() not in ("true", "false"):
        yield "exclude_input_in_output", excluded, "it is true or false"


def _scheduling(repository: Repository) -> Iterable[Hit]:
    for model in repository.llm_models:
        policy = model.parameter("batch_scheduler_policy")
        if policy is not None and policy not in _SCHEDULING:
            yield hit(_place(model, "parameters.batch_scheduler_policy"), policy=policy)


def _excluded_input(repository: Repository) -> Iterable[Hit]:
    if repository.draft is None:
        return
    for model in repository.llm_models:
        if (model.parameter("exclude_input_in_output") or "false").lower() == "true":
            yield hit(_place(model, "parameters.exclude_input_in_output"), model=model.name)


def _fractions(repository: Repository) -> Iterable[Hit]:
    models = [model for model in (repository.target, repository.draft) if model is not None]
    if len(models) < 2 or not _share_a_gpu(*models):
        return
    fractions = [_number(model.parameter("kv_cache_free_gpu_mem_fraction") or "0.9") for model in models]
    if sum(fractions) > _SHARED_FRACTIONS and not _reference(repository):
        yield hit(
            _place(models[1], "parameters.kv_cache_free_gpu_mem_fraction"), target=fractions[0], draft=fractions[1]
        )


def _share_a_gpu(one: TritonModel, other: TritonModel) -> bool:
    """Whether two models name a common GPU; without a list a model takes the first ones."""
    devices = [set((model.parameter("gpu_device_ids") or "0").replace(";", ",").split(",")) for model in (one, other)]
    return bool(devices[0] & devices[1])


def _reference(repository: Repository) -> bool:
    return bool(repository.engines) and all(engine.is_reference for engine in repository.engines.values())


def _with_engine(repository: Repository) -> Iterator[tuple[TritonModel, EngineFolder]]:
    for model in repository.llm_models:
        engine = repository.engines.get(model.name)
        if engine is not None:
            yield model, engine


def _number(text: str) -> float:
    """The value of a number; what is none counts as out of every range."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _place(model: TritonModel, key: str) -> str:
    return f"{model.folder.name}/{FILE}:{key}"


_REUSE = "tensorrt_llm/config.pbtxt:parameters.enable_kv_cache_reuse"
REPOSITORY_RULES: tuple[Rule[Repository], ...] = (
    Rule(
        code="REPO-NAME",
        severity="error",
        looks_at="repository",
        when="a model's name is not that of its folder",
        cause="the model is called {name}, its folder {folder}",
        fix="write name: {folder}, or rename the folder",
        source="Triton's poll checks",
        find=_names,
        example=hit("tensorrt_llm_draft/config.pbtxt:name", name="tensorrt_llm", folder="tensorrt_llm_draft"),
    ),
    Rule(
        code="REPO-TWICE",
        severity="error",
        looks_at="repository",
        when="a model declares one input or output more than once",
        cause="{name} is declared {count} times; the server takes one of them without a word",
        fix="take out the others",
        source="Triton does not catch it; NVIDIA's ensemble template had kv_cache_alloc_total_blocks twice",
        find=_twice,
        example=hit("ensemble/config.pbtxt:output", name="kv_cache_alloc_total_blocks", count=2),
    ),
    Rule(
        code="REPO-VERSION",
        severity="error",
        looks_at="repository",
        when="a model has no numbered version folder",
        cause="{model} has no version folder",
        fix="make the folder 1; it may be empty for an ensemble or an engine",
        source="Triton's repository layout",
        find=_no_version,
        example=hit("tensorrt_llm", model="tensorrt_llm"),
    ),
    Rule(
        code="REPO-PROGRAM",
        severity="error",
        looks_at="repository",
        when="a model of backend python has no model.py",
        cause="{model} has no model.py; loading it hangs for ever",
        fix="add model.py to its version folder",
        source="tried with Triton 2.51",
        find=_no_program,
        example=hit("preprocessing", model="preprocessing"),
    ),
    Rule(
        code="REPO-DECOUPLED",
        severity="error",
        looks_at="repository",
        when="the BLS and an LLM model disagree about decoupled",
        cause="decoupled is {bls} here and {other} in {model}",
        fix="write the same value in all of them; streaming needs true",
        source="tensorrtllm_backend issues #626 and #177",
        find=_decoupled,
        example=hit(
            "tensorrt_llm_bls/config.pbtxt:model_transaction_policy.decoupled",
            bls="false",
            model="tensorrt_llm",
            other="true",
        ),
    ),
    Rule(
        code="REPO-ORDER",
        severity="warning",
        looks_at="repository",
        when="several postprocessing instances without preserve_ordering behind a streaming model",
        cause="{count} postprocessing instances return the pieces of a stream out of order",
        fix="write instance_group count 1, or dynamic_batching {{ preserve_ordering: true }}",
        source="tried with Triton 2.51: 10 of 10 streams",
        find=_order,
        example=hit("postprocessing/config.pbtxt:instance_group.count", count=4),
    ),
    Rule(
        code="REPO-PATH",
        severity="error",
        looks_at="repository",
        when="a relative engine or tokenizer path leads nowhere",
        cause="{path} is not in {base}",
        fix="build again, or correct the path; relative paths start at the folder around the repository",
        source="TensorRT-LLM issue #2440",
        find=_paths,
        example=hit("tensorrt_llm/config.pbtxt:parameters.gpt_model_path", path="engines/target", base="build/x"),
    ),
    Rule(
        code="REPO-FOREIGN-PATH",
        severity="note",
        looks_at="repository",
        when="an absolute engine or tokenizer path is not on this machine",
        cause="{path} is not on this machine, so it was not checked; it must exist inside the server's container",
        fix="check again where it is mounted",
        source="TensorRT-LLM issue #2440",
        find=_foreign_paths,
        example=hit("tensorrt_llm/config.pbtxt:parameters.gpt_model_path", path="/engines/target"),
    ),
    Rule(
        code="REPO-NO-ENGINE",
        severity="error",
        looks_at="repository",
        when="an LLM model names no engine",
        cause="{model} has an empty gpt_model_path",
        fix="write the engine directory as the server sees it",
        source="TensorRT-LLM issue #2440",
        find=_no_engine_path,
        example=hit("tensorrt_llm/config.pbtxt:parameters.gpt_model_path", model="tensorrt_llm"),
    ),
    Rule(
        code="REPO-TOKENIZER",
        severity="error",
        looks_at="repository",
        when="a tokenizer folder holds no tokenizer",
        cause="{path} holds no tokenizer files",
        fix="copy the tokenizer files of the target into it",
        source="preprocessing and postprocessing load it at start",
        find=_tokenizers,
        example=hit("preprocessing/config.pbtxt:parameters.tokenizer_dir", path="tokenizer"),
    ),
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
        when="there is a draft model, and the target engine was built for none",
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
        code="REPO-FRACTION",
        severity="warning",
        looks_at="repository",
        when="two models share a GPU, and their memory fractions add up to more than 0.95",
        cause="target and draft share a GPU with fractions {target:g} and {draft:g}; the one loaded second starves",
        fix="take the fractions of `trtkit plan`, at most a half each",
        source="TensorRT-LLM issues #486, #2034, #1188",
        find=_fractions,
        example=hit("tensorrt_llm_draft/config.pbtxt:parameters.kv_cache_free_gpu_mem_fraction", target=0.9, draft=0.9),
    ),
)
