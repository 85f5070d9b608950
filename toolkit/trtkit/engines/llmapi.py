"""The YAML of TensorRT-LLM's LLM API (PyTorch backend), by release. Knows its keys; runs nothing.

Strict: the parsers of the releases refuse unknown keys, so a key is written only where the release is known to have
it, and a value that the release has no key for is an error instead of a silent default.
"""

from dataclasses import dataclass
from typing import Any

import yaml

from trtkit.engines.release import LlmApi, Release
from trtkit.engines.spec import DEFAULT_MAX_NUM_TOKENS
from trtkit.errors import InputError

# What a release without the key tokens_per_block uses.
_DEFAULT_BLOCK_SIZE = 32
_KV_FRACTION = 0.9
CANCELLATION_CHECK_PERIOD_MS = 100


@dataclass(frozen=True)
class LlmApiSpec:
    """What one LLM must hold. model and draft are folders or hub ids; tensor_parallel counts for both models."""

    model: str
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    revision: str | None = None
    dtype: str = "bfloat16"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    kv_dtype: str = "auto"
    block_size: int = _DEFAULT_BLOCK_SIZE
    reuse: bool = True
    draft: str | None = None
    max_draft_len: int = 0

    @property
    def max_num_tokens(self) -> int:
        """Tokens of one step: without chunked prefill a prompt is taken in one piece."""
        return max(DEFAULT_MAX_NUM_TOKENS, self.max_input_len, self.max_batch_size * (self.max_draft_len + 1))


def llm_arguments(spec: LlmApiSpec, release: Release) -> dict[str, Any]:
    """The keyword arguments of LLM(), every one known to the release.

    Raises InputError when the release has no LLM API, or no key for a value that is asked for.
    """
    api = _api_of(release)
    arguments: dict[str, Any] = {
        "model": spec.model,
        "backend": "pytorch",
        **({"revision": spec.revision} if spec.revision else {}),
        "dtype": spec.dtype,
        "tensor_parallel_size": spec.tensor_parallel,
        "pipeline_parallel_size": spec.pipeline_parallel,
        **_expert_parallel(spec),
        "max_batch_size": spec.max_batch_size,
        "max_seq_len": spec.max_seq_len,
        "max_num_tokens": spec.max_num_tokens,
        "enable_chunked_prefill": False,
        "disable_overlap_scheduler": spec.draft is not None and not api.overlap_with_draft,
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": spec.max_batch_size},
        "kv_cache_config": _kv_cache(spec, release, api),
        **({"speculative_config": _speculation(spec, api)} if spec.draft else {}),
    }
    unknown = arguments.keys() - api.keys
    assert not unknown, f"TensorRT-LLM {release.version} is not known to have {sorted(unknown)}"
    return arguments


def model_yaml(spec: LlmApiSpec, release: Release, *, decoupled: bool) -> str:
    """model.yaml of Triton's llmapi model: the arguments, and how Triton treats the model.

    max_batch_size 0 leaves batching to the LLM.
    """
    triton = {
        "max_batch_size": 0,
        "decoupled": decoupled,
        "cancellation_check_period_ms": CANCELLATION_CHECK_PERIOD_MS,
    }
    unknown = triton.keys() - _api_of(release).triton_keys
    assert not unknown, f"triton_config of {release.version} is not known to have {sorted(unknown)}"
    return _text({**llm_arguments(spec, release), "triton_config": triton})


def serve_yaml(spec: LlmApiSpec, release: Release) -> str:
    """The YAML for trtllm-serve, whose command line names the model and the backend."""
    arguments = llm_arguments(spec, release)
    return _text({key: value for key, value in arguments.items() if key not in ("model", "backend")})


def serve_command(spec: LlmApiSpec, release: Release, config: str, port: int) -> list[str]:
    """The trtllm-serve command that reads the YAML at `config`."""
    command = ["trtllm-serve", spec.model, "--backend", "pytorch", "--host", "0.0.0.0", "--port", str(port)]
    return [*command, _api_of(release).config_flag, config]


def _api_of(release: Release) -> LlmApi:
    if release.llm_api is None:
        raise InputError(
            f"TensorRT-LLM {release.version} has no stable LLM API",
            "write a version from 1.0 on, or backend: engine",
            code="VERSION-LLMAPI",
            where="tensorrt_llm",
        )
    return release.llm_api


def _expert_parallel(spec: LlmApiSpec) -> dict[str, int]:
    if spec.expert_parallel == 1:
        return {}
    return {
        "moe_expert_parallel_size": spec.expert_parallel,
        "moe_tensor_parallel_size": spec.tensor_parallel // spec.expert_parallel,
    }


def _kv_cache(spec: LlmApiSpec, release: Release, api: LlmApi) -> dict[str, Any]:
    """kv_cache_config; reuse is written as it takes effect, since some releases drop it silently with a draft."""
    if spec.kv_dtype not in ("auto", "fp8"):
        raise InputError(
            f"the LLM API has no {spec.kv_dtype} KV cache",
            "write kv_cache.dtype: auto or fp8",
            code="LLMAPI-KV",
            where="kv_cache.dtype",
        )
    config: dict[str, Any] = {
        "enable_block_reuse": spec.reuse and (spec.draft is None or api.reuse_with_draft),
        "free_gpu_memory_fraction": _KV_FRACTION,
        "dtype": spec.kv_dtype,
    }
    if "tokens_per_block" in api.kv_cache_keys:
        config["tokens_per_block"] = spec.block_size
    elif spec.block_size != _DEFAULT_BLOCK_SIZE:
        raise InputError(
            f"the LLM API of TensorRT-LLM {release.version} has no key for the block size",
            f"write kv_cache.block_size: {_DEFAULT_BLOCK_SIZE}, which it uses, or take 1.2 or newer",
            code="LLMAPI-BLOCK",
            where="kv_cache.block_size",
        )
    unknown = config.keys() - api.kv_cache_keys
    assert not unknown, f"kv_cache_config of {release.version} is not known to have {sorted(unknown)}"
    return config


def _speculation(spec: LlmApiSpec, api: LlmApi) -> dict[str, Any]:
    return {"decoding_type": api.decoding_type, api.draft_key: spec.draft, "max_draft_len": spec.max_draft_len}


def _text(document: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=False)
    return text
