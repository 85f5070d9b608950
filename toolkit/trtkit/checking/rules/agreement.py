"""Rules about what config.pbtxt says of the engines it names, and these of each other. Knows no ensemble, no paths."""

from collections.abc import Iterable, Iterator

from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checking.subjects.engine import EngineFolder
from trtkit.checking.subjects.repository import Repository, TritonModel
from trtkit.engines.release import find_release

_PREPROCESSING = "preprocessing"
_NON_CYCLIC_SINCE = (1, 0, 0)
_LOGITS = {"gather_context_logits": "context_logits", "gather_generation_logits": "generation_logits"}
_TRITON_DTYPES = {"float32": "FP32", "float16": "FP16", "bfloat16": "BF16"}


def with_engine(repository: Repository) -> Iterator[tuple[TritonModel, EngineFolder]]:
    """The LLM models whose engine is on this disk."""
    for model in repository.llm_models:
        engine = repository.engines.get(model.name)
        if engine is not None:
            yield model, engine


def _two_releases(repository: Repository) -> Iterable[Hit]:
    versions: dict[str, TritonModel] = {}
    for model, engine in with_engine(repository):
        if not engine.is_reference:
            versions.setdefault(engine.info.version, model)
    if len(versions) > 1:
        said = ", ".join(f"{model.name} is of {version}" for version, model in versions.items())
        yield hit([*versions.values()][-1].place("parameters.gpt_model_path"), engines=said)


def _idle_sinks(repository: Repository) -> Iterable[Hit]:
    for model, engine in with_engine(repository):
        sinks = model.parameter("sink_token_length")
        if sinks is not None and not engine.streamingllm and not engine.is_reference:
            place = model.place("parameters.sink_token_length")
            yield hit(place, sinks=sinks, engine=engine.folder / "config.json", version=engine.info.version)


def _beams(repository: Repository) -> Iterable[Hit]:
    for model, engine in with_engine(repository):
        asked, built = model.parameter("max_beam_width"), engine.build.get("max_beam_width")
        if asked is not None and asked.isdigit() and isinstance(built, int) and not engine.is_reference:
            if int(asked) > built:
                place = model.place("parameters.max_beam_width")
                yield hit(place, asked=int(asked), built=built, engine=engine.folder / "config.json")


def _bias_width(repository: Repository) -> Iterable[Hit]:
    model, target = repository.models.get(_PREPROCESSING), repository.target
    engine = repository.engines.get(target.name) if target else None
    written = model.parameter("vocab_size") if model else None
    if model is not None and engine is not None and written is not None and written != str(engine.info.vocab_size):
        yield hit(model.place("parameters.vocab_size"), written=written, vocab_size=engine.info.vocab_size)


def _logits_dtypes(repository: Repository) -> Iterable[Hit]:
    for model, engine in with_engine(repository):
        built = _TRITON_DTYPES.get(str(engine.model.get("logits_dtype")))
        declared = {port.name: port.dtype for port in model.outputs}
        for key, output in _LOGITS.items():
            if engine.build.get(key) and built and output in declared and declared[output] != built:
                yield hit(model.place("output"), output=output, declared=declared[output], built=built)


def _windows(repository: Repository) -> Iterable[Hit]:
    """From 1.0 on it depends on the GPU, which a repository does not name; checking the YAML looks at that."""
    for model, engine in with_engine(repository):
        release = find_release(engine.info.version)
        written = (model.parameter("max_attention_window_size") or "").split(",")
        windows = [int(window) for window in written if window.strip().isdigit()]
        longest = engine.info.spec.max_seq_len
        cyclic = not engine.is_reference and release is not None and release.order < _NON_CYCLIC_SINCE
        if cyclic and windows and min(windows) < longest and reuses(model, engine):
            # A target that takes drafts does not load without reuse.
            way = "build" if engine.max_draft_len else "write enable_kv_cache_reuse false, or build"
            place = model.place("parameters.max_attention_window_size")
            yield hit(place, window=min(windows), longest=longest, way=way)


def reuses(model: TritonModel, engine: EngineFolder) -> bool:
    """enable_kv_cache_reuse; unset means what the release of the engine takes (true from 0.19 on)."""
    written = model.parameter("enable_kv_cache_reuse")
    if written is not None:
        return written.lower() == "true"
    release = find_release(engine.info.version)
    return release is not None and release.triton is not None and release.triton.reuse_default


_GPT_MODEL_PATH = "tensorrt_llm_draft/config.pbtxt:parameters.gpt_model_path"
AGREEMENT_RULES: tuple[Rule[Repository], ...] = (
    Rule(
        code="REPO-RELEASES",
        severity="error",
        looks_at="repository",
        when="the engines of one repository were built by different releases of TensorRT-LLM",
        cause="one server loads engines of its own release only: {engines}",
        fix="build all engines with the release that serves",
        source="tensorrtllm_backend issues #190, #194, #299; TensorRT-LLM issue #1803",
        find=_two_releases,
        example=hit(_GPT_MODEL_PATH, engines="tensorrt_llm is of 1.2.1, tensorrt_llm_draft is of 1.0.0"),
    ),
    Rule(
        code="REPO-SINKS",
        severity="error",
        looks_at="repository",
        when="sink_token_length is set, and the engine was built without streamingllm",
        cause="sink_token_length is {sinks}, and {engine} (TensorRT-LLM {version}) was built without streamingllm: "
        "blocks are set aside, no sinks are kept, and the answers may be wrong without a word",
        fix="leave it out; attention_sinks with strategy: rolling keeps sinks on every release",
        source="TensorRT-LLM PRs #6379, #14275",
        find=_idle_sinks,
        example=hit(
            "tensorrt_llm/config.pbtxt:parameters.sink_token_length",
            sinks="4",
            engine="engines/target/config.json",
            version="1.2.1",
        ),
    ),
    Rule(
        code="REPO-WINDOW-REUSE",
        severity="warning",
        looks_at="repository",
        when="reuse with an attention window shorter than the engine's sequences, before 1.0",
        cause="some layers attend to {window} tokens, the engine takes {longest}: prefixes of longer prompts that are "
        "reused may be wrong, from the second identical prompt on",
        fix="{way} for sequences within {window} tokens",
        source="TensorRT-LLM issue #2912, PR #2983",
        find=_windows,
        example=hit(
            "tensorrt_llm/config.pbtxt:parameters.max_attention_window_size",
            window=4096,
            longest=9216,
            way="write enable_kv_cache_reuse false, or build",
        ),
    ),
    Rule(
        code="REPO-BEAM",
        severity="error",
        looks_at="repository",
        when="max_beam_width is larger than that of the engine",
        cause="max_beam_width is {asked}, and {engine} was built with {built}",
        fix="write max_beam_width {built}, or build the engine for more; streams and drafts take one beam all the same",
        source="trtGptModelInflightBatching.cpp; tensorrtllm_backend issue #513",
        find=_beams,
        example=hit(
            "tensorrt_llm/config.pbtxt:parameters.max_beam_width", asked=4, built=1, engine="engines/target/config.json"
        ),
    ),
    Rule(
        code="REPO-VOCAB",
        severity="error",
        looks_at="repository",
        when="preprocessing makes an embedding bias of another width than the target's logits",
        cause="vocab_size is {written} here, and the target's engine has {vocab_size} logits",
        fix="write vocab_size {vocab_size}: the model's, padding included, not the tokenizer's",
        source="tensorrtllm_backend issue #720",
        find=_bias_width,
        example=hit("preprocessing/config.pbtxt:parameters.vocab_size", written="151665", vocab_size=152064),
    ),
    Rule(
        code="REPO-LOGITS",
        severity="error",
        looks_at="repository",
        when="an engine hands out logits of another type than config.pbtxt declares",
        cause="{output} is declared {declared}, and the engine writes {built}: the numbers read are nonsense",
        fix="declare TYPE_{built}, or build with --logits_dtype float32 and declare TYPE_FP32",
        source="tensorrtllm_backend issue #598; TensorRT-LLM issue #2088",
        find=_logits_dtypes,
        example=hit("tensorrt_llm/config.pbtxt:output", output="generation_logits", declared="FP32", built="FP16"),
    ),
)
