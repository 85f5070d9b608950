"""The tensors of a `tensorrt_llm` request to the reference engine's request. Knows which inputs need a GPU."""

from dataclasses import dataclass
from typing import Any

from trtkit.errors import RequestError
from trtkit.reference.request import GenerationRequest
from trtkit.reference.sampling.params import SamplingParams
from trtkit.serving.inputs import Inputs
from trtkit.serving.words import unpack_words

# Input -> what would have to be there to honour it.
_NEEDS_GPU = {
    "encoder_input_features": "an encoder",
    "encoder_output_lengths": "an encoder",
    "decoder_input_ids": "an encoder-decoder model",
    "decoder_input_lengths": "an encoder-decoder model",
    "draft_logits": "acceptance by logits",
    "draft_acceptance_threshold": "acceptance by logits",
    "embedding_bias": "an embedding bias",
    "runtime_top_p_min": "decaying top-p",
    "runtime_top_p_decay": "decaying top-p",
    "runtime_top_p_reset_ids": "decaying top-p",
    "prompt_embedding_table": "prompt tuning",
    "prompt_table_extra_ids": "prompt tuning",
    "prompt_vocab_size": "prompt tuning",
    "cross_attention_mask": "an encoder",
    "mrope_rotary_cos_sin": "a multimodal model",
    "mrope_position_deltas": "a multimodal model",
    "lora_task_id": "LoRA adapters",
    "lora_weights": "LoRA adapters",
    "lora_config": "LoRA adapters",
    "context_phase_params": "disaggregated serving",
    "skip_cross_attn_blocks": "an encoder",
    "guided_decoding_guide_type": "guided decoding",
    "guided_decoding_guide": "guided decoding",
    "lookahead_window_size": "lookahead decoding",
    "lookahead_ngram_size": "lookahead decoding",
    "lookahead_verification_set_size": "lookahead decoding",
}
# Input -> the only value that the reference engine honours; it may be sent, because clients send defaults.
_ONLY: dict[str, Any] = {
    "num_return_sequences": 1,
    "beam_width": 1,
    "return_log_probs": False,
    "return_context_logits": False,
    "return_generation_logits": False,
}
# Length penalty, early stopping and diversity act on beams alone; retention is a hint about eviction. No effect here.


@dataclass(frozen=True)
class LlmRequest:
    """One row of a request: what the engine is asked, and how the answer is to be sent.

    includes_prompt puts the prompt in front of an answer that is not streamed, as TensorRT-LLM does unless told.
    """

    generation: GenerationRequest
    stop_words: tuple[tuple[int, ...], ...]
    streaming: bool
    includes_prompt: bool
    wants_measures: bool


def read_request(inputs: Inputs, row: int, engine_id: str, *, excludes_prompt: bool) -> LlmRequest:
    """Read one row. Raises RequestError naming the input that is missing, wrong, or beyond the reference engine."""
    _refuse_unserved(inputs, row)
    seed_name, min_name = ("seed", "min_tokens") if inputs.declares("seed") else ("random_seed", "min_length")
    stop_words = _words(inputs, "stop_words_list", row)
    if _words(inputs, "bad_words_list", row):
        raise RequestError(
            "input bad_words_list: the reference engine forbids no words", "leave it out", code="REQ-UNSERVED"
        )
    end_id = inputs.value("end_id", row)
    generation = GenerationRequest(
        request_id=engine_id,
        prompt_ids=_prompt(inputs, row),
        max_new_tokens=inputs.value("request_output_len", row),
        sampling=_sampling(inputs, row, inputs.value(seed_name, row)),
        end_id=None if end_id is None or end_id < 0 else end_id,
        draft_ids=_ids(inputs, "draft_input_ids", row),
        min_new_tokens=inputs.value(min_name, row) or 0,
    )
    exclude = inputs.value("exclude_input_in_output", row)
    return LlmRequest(
        generation=generation,
        stop_words=stop_words,
        streaming=bool(inputs.value("streaming", row)),
        includes_prompt=not (excludes_prompt if exclude is None else exclude),
        wants_measures=bool(inputs.value("return_perf_metrics", row)),
    )


def _refuse_unserved(inputs: Inputs, row: int) -> None:
    for name, needed in _NEEDS_GPU.items():
        if name in inputs:
            raise RequestError(
                f"input {name} needs {needed}, which the reference engine does not have",
                "leave it out, or serve this repository with TensorRT-LLM on a GPU",
                code="REQ-UNSERVED",
            )
    for name, allowed in _ONLY.items():
        value = inputs.value(name, row)
        if value is not None and value != allowed:
            raise RequestError(
                f"input {name} must be {allowed} for the reference engine, got {value}",
                "leave it out, or serve this repository with TensorRT-LLM on a GPU",
                code="REQ-UNSERVED",
            )


def _prompt(inputs: Inputs, row: int) -> tuple[int, ...]:
    length = inputs.value("input_lengths", row)
    prompt = _ids(inputs, "input_ids", row)
    if not 1 <= length <= len(prompt):
        raise RequestError(
            f"input input_lengths is {length}, but input_ids holds {len(prompt)} tokens",
            "send the number of prompt tokens",
            code="REQ-INPUT",
        )
    return prompt[:length]


def _ids(inputs: Inputs, name: str, row: int) -> tuple[int, ...]:
    array = inputs.array(name, row)
    return () if array is None else tuple(array.reshape(-1).tolist())


def _words(inputs: Inputs, name: str, row: int) -> tuple[tuple[int, ...], ...]:
    packed = inputs.array(name, row)
    if packed is None:
        return ()
    try:
        return tuple(unpack_words(packed))
    except ValueError as error:
        raise RequestError(
            f"input {name}: {error}", "send tokens above end offsets, padded with -1", code="REQ-INPUT"
        ) from None


def _sampling(inputs: Inputs, row: int, seed: int | None) -> SamplingParams:
    """TensorRT-LLM's meaning of what is left out.

    top_k and top_p count as 0 then, and both 0 is greedy; one alone leaves the other without effect.
    """
    top_k = inputs.value("runtime_top_k", row) or 0
    top_p = inputs.value("runtime_top_p", row) or 0.0
    greedy = top_k == 0 and top_p == 0.0
    given = {
        "temperature": inputs.value("temperature", row),
        "repetition_penalty": inputs.value("repetition_penalty", row),
        "presence_penalty": inputs.value("presence_penalty", row),
        "frequency_penalty": inputs.value("frequency_penalty", row),
        "seed": seed,
    }
    return SamplingParams(
        top_k=1 if greedy else top_k,
        top_p=top_p if top_p != 0.0 else 1.0,
        **{name: value for name, value in given.items() if value is not None},
    )
