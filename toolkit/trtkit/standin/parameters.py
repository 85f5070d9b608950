"""The parameters of a `tensorrt_llm` config that the stand-in cannot honour. Knows keys and values, loads nothing."""

from trtkit.errors import InputError
from trtkit.reference.request import MAX_BEAM_WIDTH
from trtkit.serving.arguments import ModelArguments

# Key -> the values that mean nothing beyond what the reference engine does. Keys not listed place or size things on a
# GPU (fractions, device ids, CUDA graphs) and have no counterpart here.
_ALLOWED = {
    "max_beam_width": tuple(str(width) for width in range(1, MAX_BEAM_WIDTH + 1)),
    "gpt_model_type": ("inflight_fused_batching", "inflight_batching"),
    "decoding_mode": ("", "top_k", "top_p", "top_k_top_p", "beam_search"),
    "speculative_decoding_fast_logits": ("", "0", "false"),
    "encoder_model_path": ("",),
    "guided_decoding_backend": ("",),
}


def check_parameters(arguments: ModelArguments) -> None:
    """Raise InputError naming the first parameter that asks for what only TensorRT-LLM has."""
    for key, allowed in _ALLOWED.items():
        value = arguments.parameter(key, "")
        if key in arguments.parameters and value not in allowed:
            known = " or ".join(filter(None, allowed)) or "none"
            raise InputError(
                f"parameter {key} is {value!r}; the reference engine knows {known}",
                "change it, or serve this repository with TensorRT-LLM on a GPU",
                code="PARAM-UNSERVED",
                where=f"{arguments.name}/config.pbtxt",
            )
