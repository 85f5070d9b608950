"""Rules about one engine directory. Knows config.json of engines, no repository and no machine."""

from collections.abc import Iterable

from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checking.subjects.engine import EngineFolder
from trtkit.engines.release import find_release, nearest_release

_CONFIG = "config.json"


def _missing_ranks(engine: EngineFolder) -> Iterable[Hit]:
    missing = [rank for rank in range(engine.info.world_size) if rank not in engine.ranks]
    if missing and not engine.is_reference:
        yield hit("", files=", ".join(f"rank{rank}.engine" for rank in missing), world=engine.info.world_size)


def _missing_checkpoint(engine: EngineFolder) -> Iterable[Hit]:
    checkpoint = engine.info.checkpoint
    if checkpoint is not None and not (checkpoint / "config.json").is_file():
        yield hit(f"{_CONFIG}:trtkit_reference.checkpoint", checkpoint=checkpoint)


def _unknown_version(engine: EngineFolder) -> Iterable[Hit]:
    if find_release(engine.info.version) is None:
        yield hit(
            f"{_CONFIG}:version", version=engine.info.version, nearest=nearest_release(engine.info.version).version
        )


def _logits_with_drafts(engine: EngineFolder) -> Iterable[Hit]:
    if engine.build.get("gather_context_logits") and engine.max_draft_len:
        yield hit(f"{_CONFIG}:build_config.gather_context_logits", draft_len=engine.max_draft_len)


def _drafts_without_reuse(engine: EngineFolder) -> Iterable[Hit]:
    if engine.max_draft_len and not engine.paged_context_fmha:
        yield hit(f"{_CONFIG}:build_config.plugin_config.use_paged_context_fmha", draft_len=engine.max_draft_len)


def _drafts_without_mode(engine: EngineFolder) -> Iterable[Hit]:
    if engine.max_draft_len and not engine.verifies_drafts:
        yield hit(f"{_CONFIG}:build_config.speculative_decoding_mode", draft_len=engine.max_draft_len)


def _sinks_with_drafts(engine: EngineFolder) -> Iterable[Hit]:
    if engine.streamingllm and engine.max_draft_len:
        yield hit(f"{_CONFIG}:build_config.plugin_config.streamingllm")


def _half_logits(engine: EngineFolder) -> Iterable[Hit]:
    gathers = engine.build.get("gather_generation_logits") or engine.build.get("gather_context_logits")
    if gathers and engine.model.get("logits_dtype") == "float16":
        yield hit(f"{_CONFIG}:pretrained_config.logits_dtype")


ENGINE_RULES: tuple[Rule[EngineFolder], ...] = (
    Rule(
        code="ENGINE-FILES",
        severity="error",
        looks_at="engine",
        when="an engine file that the mapping announces is not there",
        cause="{files} missing; config.json announces {world} ranks",
        fix="build the engine again",
        source="tensorrtllm_backend issue #61",
        find=_missing_ranks,
        example=hit("", files="rank1.engine", world=2),
    ),
    Rule(
        code="ENGINE-CHECKPOINT",
        severity="error",
        looks_at="engine",
        when="the checkpoint that a reference engine executes is not there",
        cause="the checkpoint {checkpoint} is not there",
        fix="move the build directory as a whole, or build again",
        source="trtkit",
        find=_missing_checkpoint,
        example=hit(f"{_CONFIG}:trtkit_reference.checkpoint", checkpoint="build/x/checkpoints/target"),
    ),
    Rule(
        code="ENGINE-VERSION",
        severity="warning",
        looks_at="engine",
        when="the engine was built by a release that trtkit has no facts about",
        cause="built by TensorRT-LLM {version}, which trtkit does not know; the nearest known one is {nearest}",
        fix="serve it with exactly this version, or build again with {nearest}",
        source="engines load only in the release that built them",
        find=_unknown_version,
        example=hit(f"{_CONFIG}:version", version="1.2.7", nearest="1.2.1"),
    ),
    Rule(
        code="LOGITS-SPEC",
        severity="error",
        looks_at="engine",
        when="gather_context_logits together with max_draft_len",
        cause="context logits and drafts of {draft_len} tokens exclude each other: the runtime switches reuse off",
        fix="build without gather_context_logits; make a separate engine to audit logits",
        source="commands/build.py: RuntimeError; trtGptModelInflightBatching.cpp",
        find=_logits_with_drafts,
        example=hit(f"{_CONFIG}:build_config.gather_context_logits", draft_len=5),
    ),
    Rule(
        code="ENGINE-FMHA",
        severity="error",
        looks_at="engine",
        when="max_draft_len is set and paged context FMHA is off",
        cause="it takes drafts of {draft_len} tokens, but use_paged_context_fmha is off -> the runtime cannot reuse KV "
        "blocks -> a draft-target engine refuses to load without reuse",
        fix="build again with use_paged_context_fmha enabled; `trtkit check` on the YAML says what switched it off",
        source="trtGptModelInflightBatching.cpp",
        find=_drafts_without_reuse,
        example=hit(f"{_CONFIG}:build_config.plugin_config.use_paged_context_fmha", draft_len=5),
    ),
    Rule(
        code="ENGINE-MODE",
        severity="error",
        looks_at="engine",
        when="max_draft_len is set and the speculative mode is not draft_tokens_external",
        cause="it has max_draft_len {draft_len}, but was not built with draft_tokens_external",
        fix="build again with --speculative_decoding_mode draft_tokens_external",
        source="tensorrtllm_backend issue #473",
        find=_drafts_without_mode,
        example=hit(f"{_CONFIG}:build_config.speculative_decoding_mode", draft_len=5),
    ),
    Rule(
        code="ENGINE-SINKS",
        severity="error",
        looks_at="engine",
        when="streamingllm together with max_draft_len",
        cause="the engine keeps attention sinks and takes drafts; no release loads that",
        fix="build without streamingllm; trtkit keeps sinks with strategy: rolling",
        source="builder.py; trtGptModelInflightBatching.cpp",
        find=_sinks_with_drafts,
        example=hit(f"{_CONFIG}:build_config.plugin_config.streamingllm"),
    ),
    Rule(
        code="ENGINE-LOGITS",
        severity="warning",
        looks_at="engine",
        when="logits are gathered in float16",
        cause="logits are handed out in float16; the backend's templates read float32",
        fix="build with --logits_dtype float32, and TYPE_FP32 in config.pbtxt",
        source="tensorrtllm_backend issue #598",
        find=_half_logits,
        example=hit(f"{_CONFIG}:pretrained_config.logits_dtype"),
    ),
)
