"""EngineSpec to the trtllm-build command of one release. Pure: runs nothing, so that a golden file can hold it."""

from collections.abc import Mapping
from dataclasses import dataclass

from trtkit.engines.release import BuildGrammar, Release
from trtkit.engines.spec import EngineSpec
from trtkit.errors import InputError

_GEMM_PLUGIN = {"fp8": "fp8", "nvfp4": "nvfp4"}
# The builder refuses to fuse gate and up projections of other formats (commands/build.py: use_fused_mlp).
_FUSES_MLP = frozenset({"none", "fp8"})
_REQUIRED = frozenset(
    {"use_paged_context_fmha", "use_fp8_context_fmha", "tokens_per_block", "streamingllm", "gemm_plugin"}
)


@dataclass(frozen=True)
class BuildPaths:
    """Where trtllm-build reads and writes, as it sees the paths. timing_cache is read if it exists, then written."""

    checkpoint: str
    out: str
    timing_cache: str


def build_command(spec: EngineSpec, release: Release, paths: BuildPaths, workers: int = 1) -> list[str]:
    """The exact command line.

    Every limit and every plugin option that the release has is written out: defaults moved between releases, and a
    default left open is one that a release may move. Raises InputError when the release has no trtllm-build.
    """
    if release.build is None:
        raise InputError(
            f"TensorRT-LLM {release.version} has no trtllm-build",
            "choose a release up to 1.2.1, or backend: llmapi",
            code="VERSION-ENGINE",
            where="tensorrt_llm",
        )
    command = ["trtllm-build", "--checkpoint_dir", paths.checkpoint, "--output_dir", paths.out]
    command += _options(_limits(spec))
    command += _options(_plugins(spec, release.build))
    if spec.max_draft_len:
        command += ["--speculative_decoding_mode", "draft_tokens_external", "--max_draft_len", str(spec.max_draft_len)]
    if spec.generation_logits:
        command += ["--gather_generation_logits"]
    command += ["--input_timing_cache", paths.timing_cache, "--output_timing_cache", paths.timing_cache]
    return [*command, "--profiling_verbosity", "layer_names_only", "--workers", str(workers), "--log_level", "info"]


def build_decisions(spec: EngineSpec, release: Release) -> list[str]:
    """The part of the command that decides what the engine is: no paths, no workers. Enters the cache key."""
    return build_command(spec, release, BuildPaths("", "", ""))


def gemm_plugin(quantization: str) -> str:
    """The value of --gemm_plugin: "auto" is the model's dtype."""
    return _GEMM_PLUGIN.get(quantization, "auto")


def _limits(spec: EngineSpec) -> Mapping[str, str]:
    return {
        "max_batch_size": str(spec.max_batch_size),
        "max_input_len": str(spec.max_input_len),
        "max_seq_len": str(spec.max_seq_len),
        "max_num_tokens": str(spec.max_num_tokens),
        "opt_num_tokens": str(spec.max_batch_size),
        "max_beam_width": "1",
        "max_prompt_embedding_table_size": "0",
        "kv_cache_type": "paged",
        "logits_dtype": "float32",
    }


def _plugins(spec: EngineSpec, grammar: BuildGrammar) -> Mapping[str, str]:
    """A value for every plugin option of the release: the decided ones, and the release's own for the others."""
    decided = {
        "gemm_plugin": gemm_plugin(spec.quantization),
        "context_fmha": "enable",
        "remove_input_padding": "enable",
        "tokens_per_block": str(spec.block_size),
        "use_paged_context_fmha": _switch(spec.paged_context_fmha),
        "use_fp8_context_fmha": _switch(spec.fp8_context_fmha),
        "use_fused_mlp": _switch(spec.quantization in _FUSES_MLP),
        "streamingllm": _switch(spec.attention_sinks),
    }
    missing = _REQUIRED - grammar.plugins.keys()
    assert not missing, f"the release data lack options that decide what the engine is: {sorted(missing)}"
    values = {name: decided.get(name, flag.default) for name, flag in grammar.plugins.items()}
    return {name: str(value) for name, value in values.items() if value is not None}


def _options(values: Mapping[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", value)]


def _switch(on: bool) -> str:
    return "enable" if on else "disable"
