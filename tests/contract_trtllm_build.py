"""A contract checker that stands in for trtllm-build: the command line of one release, not its kernels.

It parses a command as that release's argument parser does, refuses what commands/build.py and builder.py refuse with
their exit codes, applies the builder's silent rewrites, and writes the config.json that the release writes. It builds
nothing: the rank files it leaves are empty. Written from the release data and from builder.py, and sharing no code
with the emitter that it checks.
"""

import argparse
import json
import stat
import sys
from pathlib import Path
from typing import Any

from trtkit.engines.release import BuildGrammar, Flag, Release, find_release

_MODES = {
    None: 1,
    "draft_tokens_external": 2,
    "medusa": 4,
    "lookahead_decoding": 8,
    "explicit_draft_tokens": 16,
    "eagle": 32,
}
_FP8_WORKFLOW = ("FP8", "W4A8_AWQ", "NVFP4")
_REDUCE_FUSION = ("LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM")


def install(folder: Path, version: str, sm: int = 90, gpus: int = 8) -> Path:
    """Put a `trtllm-build` of this version into `folder`, for PATH; returns the program."""
    program = folder / "trtllm-build"
    folder.mkdir(parents=True, exist_ok=True)
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from contract_trtllm_build import main\nsys.exit(main(sys.argv[1:], {version!r}, {sm}, {gpus}))\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def main(arguments: list[str], version: str, sm: int, gpus: int) -> int:
    """What the program does; returns its exit code (argparse exits with 2 by itself)."""
    release = find_release(version)
    assert release is not None and release.build is not None
    arguments_given = parser_of(release.build).parse_args(arguments)
    try:
        document = build(vars(arguments_given), release, sm)
    except (RuntimeError, AssertionError, FileNotFoundError, NotImplementedError) as error:
        sys.stderr.write(f"Traceback (most recent call last):\n{type(error).__name__}: {error}\n")
        return 1
    out = Path(arguments_given.output_dir)
    out.mkdir(parents=True, exist_ok=True)
    world_size = document["pretrained_config"]["mapping"]["world_size"]
    sys.stdout.write(f"[TRT-LLM] [I] {min(gpus, arguments_given.workers)} workers\n")
    for rank in range(world_size):
        sys.stdout.write("[TRT-LLM] [I] Total time of constructing network from module object 1.0 seconds\n")
        sys.stdout.write("[TRT] [I] Engine generation completed in 1.0 seconds.\n")
        sys.stdout.write(f"[TRT-LLM] [I] Serializing engine to {out}/rank{rank}.engine...\n")
        (out / f"rank{rank}.engine").touch()
    (out / "config.json").write_text(json.dumps(document, indent=4))
    Path(arguments_given.output_timing_cache).touch()
    sys.stdout.write("[TRT-LLM] [I] Total time of building all engines: 00:00:01\n")
    return 0


def parser_of(grammar: BuildGrammar) -> argparse.ArgumentParser:
    """The argument parser of the release."""
    parser = argparse.ArgumentParser(prog="trtllm-build")
    for flag in (*grammar.flags.values(), *grammar.plugins.values()):
        names = [f"--{name}" for name in (flag.name, *flag.aliases)]
        parser.add_argument(*names, dest=flag.name, **_argument(flag))
    return parser


def _argument(flag: Flag) -> dict[str, Any]:
    if flag.kind == "switch":
        return {"action": "store_true", "default": flag.default}
    if flag.kind == "enum":
        return {"type": lambda text: _enum(text, flag), "default": argparse.SUPPRESS}
    argument: dict[str, Any] = {"default": flag.default, "type": int if flag.kind == "int" else str}
    if flag.kind == "choice":
        argument["choices"] = flag.choices
    if flag.many:
        argument["nargs"] = "+"
    if flag.name == "paged_kv_cache":
        argument["default"] = argparse.SUPPRESS
    return argument


def _enum(text: str, flag: Flag) -> str:
    if text.lower() not in flag.choices:
        raise argparse.ArgumentTypeError(f"Invalid value '{text}'. Expected one of {list(flag.choices)}")
    return text.upper()


def build(given: dict[str, Any], release: Release, sm: int) -> dict[str, Any]:
    """The engine's config.json. Raises what the release raises."""
    assert release.build is not None
    if given["gather_all_token_logits"]:
        given["gather_context_logits"] = given["gather_generation_logits"] = True
    if given["gather_context_logits"] and given["max_draft_len"] > 0:
        raise RuntimeError("Gather context logits is not support with draft len > 0.")
    if given["multiple_profiles"] == "enable" and given["opt_num_tokens"] is not None:
        raise RuntimeError("multiple_profiles is enabled, while opt_num_tokens is set.")
    plugins = _plugin_config(given, release.build, sm)
    model = json.loads((Path(given["checkpoint_dir"]) / "config.json").read_text())
    if given["logits_dtype"]:
        model["logits_dtype"] = given["logits_dtype"]
    _check_architecture(plugins, model["architecture"], release)
    for rank in range(model["mapping"]["world_size"]):
        shard = Path(given["checkpoint_dir"]) / f"rank{rank}.safetensors"
        if not shard.is_file():
            raise FileNotFoundError(f"No such file or directory: {shard}")
    config = _build_config(given, release.build)
    _rewrite(config, plugins, model, sm)
    config["plugin_config"] = plugins
    return {"version": release.version, "pretrained_config": model, "build_config": config}


def _plugin_config(given: dict[str, Any], grammar: BuildGrammar, sm: int) -> dict[str, Any]:
    words = {"enable": True, "disable": False}
    plugins: dict[str, Any] = {"dtype": "float16", **grammar.hidden_plugins}
    for name, flag in grammar.plugins.items():
        value = given[name]
        if flag.choices == ("enable", "disable"):
            value = words[value]
        elif value == "disable":
            value = None
        plugins[name] = value
    if "explicitly_disable_gemm_plugin" in plugins:
        plugins["explicitly_disable_gemm_plugin"] = given["gemm_plugin"] == "disable"
    if sm == 100:
        for name in ("gemm_swiglu_plugin", "fp8_rowwise_gemm_plugin", "low_latency_gemm_plugin"):
            if plugins[name]:
                raise NotImplementedError(f"{name}={plugins[name]} is not supported on SM {sm}.")
    return plugins


def _check_architecture(plugins: dict[str, Any], architecture: str, release: Release) -> None:
    if release.sinks:
        assert not plugins["streamingllm"] or architecture == "LlamaForCausalLM", (
            "StreamingLLM is only supported in the llama model."
        )
    else:
        assert not plugins["streamingllm"], (
            "StreamingLLM is no longer supported because attention sink cannot work with the non-cyclic kv cache"
        )
    assert not plugins["pp_reduce_scatter"] or architecture == "MixtralForCausalLM", (
        "PP reduce scatter is only supported in the mixtral model."
    )


def _build_config(given: dict[str, Any], grammar: BuildGrammar) -> dict[str, Any]:
    names = [
        *("max_input_len", "max_seq_len", "max_batch_size", "max_beam_width", "max_num_tokens", "opt_num_tokens"),
        *("max_prompt_embedding_table_size", "gather_context_logits", "gather_generation_logits"),
        *("profiling_verbosity", "enable_debug_output", "max_draft_len", "input_timing_cache", "output_timing_cache"),
        *("weight_sparsity", "weight_streaming", "max_encoder_input_len", "monitor_memory"),
    ]
    config = {name: given[name] for name in names} | dict(grammar.build_defaults)
    config["kv_cache_type"] = given.get("kv_cache_type", "PAGED")
    config["speculative_decoding_mode"] = _MODES[given["speculative_decoding_mode"]]
    if grammar.auto_parallel:
        config["auto_parallel_config"] = {"world_size": given["auto_parallel"], "gpus_per_node": given["gpus_per_node"]}
    return config


def _rewrite(config: dict[str, Any], plugins: dict[str, Any], model: dict[str, Any], sm: int) -> None:
    """builder.py's rewrites, in its order."""
    quantization = model.get("quantization") or {}
    algorithm, kv = quantization.get("quant_algo"), quantization.get("kv_cache_quant_algo")
    plugins["dtype"] = model["dtype"]
    if config["max_seq_len"] is None:
        config["max_seq_len"] = model.get("max_position_embeddings") or 2048
    config["max_input_len"] = min(config["max_input_len"], config["max_seq_len"])
    _check_max_num_tokens(config, plugins)
    if plugins["streamingllm"]:
        plugins["use_paged_context_fmha"] = False
    if model["mapping"]["tp_size"] == 1 or model["architecture"] not in _REDUCE_FUSION:
        plugins["reduce_fusion"] = False
    plugins["user_buffer"] = plugins["user_buffer"] and plugins["reduce_fusion"]
    if config["speculative_decoding_mode"] != 1:
        config["max_seq_len"] += config["max_draft_len"]
        config["max_num_tokens"] = max(
            config["max_num_tokens"], config["max_batch_size"] * (config["max_draft_len"] + 1)
        )
    _rewrite_context_fmha(plugins, algorithm, kv, sm)
    if plugins["use_paged_context_fmha"] and kv == "INT8":
        plugins["use_paged_context_fmha"] = False
    if 100 <= sm < 120 and (algorithm in ("W8A16", "W4A16") or kv == "INT8"):
        raise RuntimeError("INT8/INT4 quantization is not supported on SM>=100.")
    if algorithm == "NVFP4" and not plugins.get("explicitly_disable_gemm_plugin"):
        plugins["gemm_plugin"] = "nvfp4"
    plugins["nccl_plugin"] = model["dtype"] if model["mapping"]["world_size"] > 1 else None
    plugins["paged_state"] = False


def _check_max_num_tokens(config: dict[str, Any], plugins: dict[str, Any]) -> None:
    """_common.py's check_max_num_tokens, with padding removal and context FMHA on; max_seq_len is without drafts."""
    tokens = min(config["max_num_tokens"], config["max_seq_len"] * config["max_batch_size"])
    config["max_num_tokens"] = max(tokens, plugins["tokens_per_block"])
    if config["opt_num_tokens"] is None:
        config["opt_num_tokens"] = config["max_batch_size"] * config["max_beam_width"]
    config["opt_num_tokens"] = min(config["opt_num_tokens"], config["max_num_tokens"])


def _rewrite_context_fmha(plugins: dict[str, Any], algorithm: str | None, kv: str | None, sm: int) -> None:
    if not plugins["context_fmha"]:
        plugins["use_fp8_context_fmha"] = plugins["use_paged_context_fmha"] = False
    elif algorithm not in _FP8_WORKFLOW or sm < 89:
        plugins["use_fp8_context_fmha"] = False
        if kv == "FP8":
            plugins["use_paged_context_fmha"] = False
    elif plugins["use_paged_context_fmha"]:
        plugins["use_fp8_context_fmha"] = kv == "FP8"
