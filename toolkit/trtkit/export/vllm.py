"""BuildConfig to the equivalent `vllm serve` command. Pure; checked against the option parser of vLLM 0.33.

vLLM speculates with a draft model in its V1 engine: --speculative-config with method draft_model.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from trtkit.config.schema import BuildConfig, DraftTarget, Model
from trtkit.errors import InputError
from trtkit.export.counterpart import Counterpart
from trtkit.launch.script import folded

# What vLLM quantises on load, from an unquantised checkpoint.
_ONLINE_QUANTIZATION = {"none": None, "fp8": "fp8"}
_KV_DTYPES = ("auto", "fp8")


def vllm_command(
    config: BuildConfig, *, checkpoints: Mapping[str, str], stored_quantized: Collection[str] = ()
) -> list[str]:
    """The argument list. `checkpoints` maps a role to the folder or hub id that vLLM is given.

    stored_quantized: the roles whose checkpoint is quantised already, which vLLM finds by itself. Raises InputError for
    weights or a KV cache that vLLM cannot make from this checkpoint.
    """
    target, limits = config.target, config.limits
    _refuse_kv_dtype(config.kv_cache.dtype)
    command = ["vllm", "serve", checkpoints["target"]]
    command += ["--revision", target.revision] if target.revision else []
    command += ["--dtype", target.dtype]
    command += [] if "target" in stored_quantized else _quantization("target", target)
    command += ["--tensor-parallel-size", str(target.tensor_parallel)]
    command += ["--pipeline-parallel-size", str(target.pipeline_parallel)]
    command += ["--enable-expert-parallel"] if target.expert_parallel > 1 else []
    command += ["--max-num-seqs", str(limits.max_batch_size), "--max-model-len", str(limits.max_seq_len)]
    command += ["--kv-cache-dtype", config.kv_cache.dtype, "--block-size", str(config.kv_cache.block_size)]
    command += ["--enable-prefix-caching" if config.kv_cache.reuse else "--no-enable-prefix-caching"]
    if config.draft is not None:
        quantization = [] if "draft" in stored_quantized else _quantization("draft", config.draft)
        speculation = _speculation(config, config.draft, checkpoints["draft"], quantization)
        command += ["--speculative-config", json.dumps(speculation)]
    return [*command, "--port", str(config.serving.http_port)]


def export_vllm(
    config: BuildConfig, *, checkpoints: Mapping[str, str], stored_quantized: Collection[str] = ()
) -> Counterpart:
    """The command as shell text, with notes."""
    text = folded(vllm_command(config, checkpoints=checkpoints, stored_quantized=stored_quantized)) + "\n"
    return Counterpart("vllm", text, tuple(_notes(config)))


def _quantization(role: str, model: Model) -> list[str]:
    if model.quantization not in _ONLINE_QUANTIZATION:
        raise InputError(
            f"vLLM does not make {model.quantization} weights while it loads a checkpoint",
            f"write {role}.quantization: none or fp8, or name a checkpoint that is stored so",
            code="EXPORT-QUANT",
            where=f"{role}.quantization",
        )
    name = _ONLINE_QUANTIZATION[model.quantization]
    return ["--quantization", name] if name else []


def _speculation(config: BuildConfig, draft: Model, checkpoint: str, quantization: list[str]) -> dict[str, Any]:
    if draft.tensor_parallel not in (1, config.target.tensor_parallel):
        raise InputError(
            f"vLLM runs a draft on 1 rank or on the target's {config.target.tensor_parallel}, not on "
            f"{draft.tensor_parallel}",
            "write draft.tensor_parallel: 1, or the target's",
            code="EXPORT-DRAFT-TP",
            where="draft.tensor_parallel",
        )
    return {
        "method": "draft_model",
        "model": checkpoint,
        "num_speculative_tokens": config.max_draft_len,
        "draft_tensor_parallel_size": draft.tensor_parallel,
        **({"revision": draft.revision} if draft.revision else {}),
        **({"quantization": quantization[1]} if quantization else {}),
    }


def _refuse_kv_dtype(kv_dtype: str) -> None:
    if kv_dtype not in _KV_DTYPES:
        raise InputError(
            f"vLLM has no {kv_dtype} KV cache",
            "write kv_cache.dtype: auto or fp8",
            code="EXPORT-KV",
            where="kv_cache.dtype",
        )


def _notes(config: BuildConfig) -> list[str]:
    speculation = config.speculation
    notes = []
    if config.attention_sinks is not None:
        notes.append("attention_sinks: vLLM keeps none; a session ends at --max-model-len")
    if isinstance(speculation, DraftTarget) and speculation.adaptive:
        notes.append("speculation.adaptive: vLLM drafts with a fixed length")
    if isinstance(speculation, DraftTarget) and speculation.acceptance == "token":
        notes.append("speculation.acceptance: vLLM always samples by rejection; for greedy requests that is the same")
    if config.draft is not None and config.draft.dtype != config.target.dtype:
        notes.append("draft.dtype: vLLM takes it from the draft's config.json")
    if config.kv_cache.dtype == "fp8":
        notes.append("kv_cache.dtype fp8: without scales in the checkpoint vLLM uses 1.0")
    notes.append("serving: one port for OpenAI's API; there is no gRPC")
    return notes
