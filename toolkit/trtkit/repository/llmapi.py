"""The repository of Triton's llmapi model: config.pbtxt and model.yaml. Knows the layout, not the LLM's arguments.

The model's Python files are NVIDIA's and lie in the image; launch/serve.sh puts them beside model.yaml. The policy and
the batch size stand in config.pbtxt as well as in model.yaml, since the former counts when auto-completion is off.
"""

from trtkit.engines.release import Release
from trtkit.errors import InputError
from trtkit.repository.pbtxt import ModelConfig, to_pbtxt
from trtkit.serving.tensor import Dtype, ModelContract, Tensor

MODEL = "tensorrt_llm"

# The type of every tensor that some release has; all but the prompt are optional, with one element.
_INPUT_TYPES: dict[str, Dtype] = {
    "text_input": "STRING",
    "streaming": "BOOL",
    "stop": "BOOL",
    "sampling_param_best_of": "INT32",
    "sampling_param_temperature": "FP32",
    "sampling_param_top_k": "INT32",
    "sampling_param_top_p": "FP32",
    "sampling_param_frequency_penalty": "FP32",
    "sampling_param_presence_penalty": "FP32",
    "sampling_param_max_tokens": "INT32",
    "sampling_param_stop": "STRING",
    "sampling_param_seed": "UINT64",
    "sampling_param_exclude_input_from_output": "BOOL",
    "sampling_param_return_perf_metrics": "BOOL",
    "return_finish_reason": "BOOL",
    "return_stop_reason": "BOOL",
    "return_cumulative_logprob": "BOOL",
}
_OUTPUT_TYPES: dict[str, Dtype] = {
    "text_output": "STRING",
    "finish_reason": "STRING",
    "stop_reason": "STRING",
    "cumulative_logprob": "FP32",
    "kv_cache_alloc_new_blocks": "INT32",
    "kv_cache_alloc_total_blocks": "INT32",
    "kv_cache_reused_block": "INT32",
    "kv_cache_missed_block": "INT32",
    "kv_cache_hit_rate": "FP32",
    "arrival_time_ns": "INT64",
    "first_scheduled_time_ns": "INT64",
    "first_token_time_ns": "INT64",
    "last_token_time_ns": "INT64",
    "acceptance_rate": "FP32",
    "total_accepted_draft_tokens": "INT32",
    "total_draft_tokens": "INT32",
}
_LISTS = frozenset({"text_input", "sampling_param_stop"})
_ANSWERS = ("text_output", "finish_reason", "stop_reason", "cumulative_logprob", "kv_cache_")


def render_llmapi_repository(release: Release, model_yaml: str, *, decoupled: bool) -> dict[str, str]:
    """Every file of the repository: relative path -> text. Raises InputError for a release without an LLM API."""
    config = ModelConfig(llmapi_contract(release), max_batch_size=0, backend="python", decoupled=decoupled)
    return {f"{MODEL}/1/model.yaml": model_yaml, f"{MODEL}/config.pbtxt": to_pbtxt(config)}


def llmapi_contract(release: Release) -> ModelContract:
    """The tensors of the llmapi model as the release has them; there is no batch axis."""
    if release.llm_api is None:
        raise InputError(
            f"TensorRT-LLM {release.version} has no llmapi model that trtkit writes for",
            "write a version from 1.0 on",
            code="VERSION-LLMAPI",
            where="tensorrt_llm",
        )
    inputs = (
        Tensor(name, _INPUT_TYPES[name], (-1,) if name in _LISTS else (1,), optional=name != "text_input")
        for name in release.llm_api.triton_inputs
    )
    outputs = (
        Tensor(name, _OUTPUT_TYPES[name], (-1,) if name.startswith(_ANSWERS) else (1,))
        for name in release.llm_api.triton_outputs
    )
    return ModelContract(MODEL, tuple(inputs), tuple(outputs))
