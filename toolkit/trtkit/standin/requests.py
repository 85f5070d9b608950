"""The tensors of a `tensorrt_llm` request to the reference engine's request. Knows which inputs need a GPU."""

from dataclasses import dataclass

import numpy as np

from trtkit.errors import RequestError
from trtkit.reference.request import BeamRules, GenerationRequest, Returns
from trtkit.reference.sampling.params import SamplingParams
from trtkit.serving.batch import num_sequences
from trtkit.serving.inputs import Inputs
from trtkit.serving.tensor import Array
from trtkit.serving.words import unpack_words

# Input -> what would have to be there to honour it.
NEEDS_GPU = {
    "encoder_input_features": "an encoder",
    "encoder_output_lengths": "an encoder",
    "decoder_input_ids": "an encoder-decoder model",
    "decoder_input_lengths": "an encoder-decoder model",
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
# In the order of Returns: return_<name>.
_RETURNS = ("log_probs", "generation_logits", "context_logits")
_COUNTS = ("num_input_tokens", "num_output_tokens")
# Retention is a hint about eviction and has no effect here. Diversity is asked for by no value but 0.


@dataclass(frozen=True)
class ModelLimits:
    """What the repository and the engine say about every request."""

    vocab_size: int
    excludes_prompt: bool
    max_beam_width: int


@dataclass(frozen=True)
class LlmRequest:
    """One row of a request: what the engine is asked, and how the answer is to be sent.

    includes_prompt puts the prompt in front of an answer that is not streamed, as TensorRT-LLM does unless told.
    num_sequences answers are wanted, each of its own seed, or, of a beam search, num_beams of its beams. counts names
    the outputs with numbers of tokens that are wanted.
    """

    generation: GenerationRequest
    streaming: bool
    includes_prompt: bool
    wants_measures: bool
    num_sequences: int = 1
    num_beams: int = 1
    counts: frozenset[str] = frozenset()


def read_request(inputs: Inputs, row: int, engine_id: str, limits: ModelLimits) -> LlmRequest:
    """Read one row. Raises RequestError naming the input that is missing, wrong, or beyond the reference engine."""
    _refuse_unserved(inputs, row)
    seed_name, min_name = ("seed", "min_tokens") if inputs.declares("seed") else ("random_seed", "min_length")
    end_id = inputs.value("end_id", row)
    generation = GenerationRequest(
        request_id=engine_id,
        prompt_ids=_prompt(inputs, row),
        max_new_tokens=inputs.value("request_output_len", row),
        sampling=_sampling(inputs, row, inputs.value(seed_name, row)),
        end_id=None if end_id is None or end_id < 0 else end_id,
        draft_ids=_ids(inputs, "draft_input_ids", row),
        min_new_tokens=inputs.value(min_name, row) or 0,
        draft_logits=inputs.array("draft_logits", row),
        draft_acceptance_threshold=inputs.value("draft_acceptance_threshold", row),
        embedding_bias=_bias(inputs, row, limits.vocab_size),
        stop_words=_words(inputs, "stop_words_list", row),
        bad_words=_words(inputs, "bad_words_list", row),
        returns=Returns(*(bool(inputs.value(f"return_{name}", row)) for name in _RETURNS)),
        beam=_beam(inputs, row, limits.max_beam_width),
    )
    exclude = inputs.value("exclude_input_in_output", row)
    asked = inputs.value("num_return_sequences", row)
    count = num_sequences(asked)
    width = generation.beam.width if generation.beam else 1
    return LlmRequest(
        generation=generation,
        streaming=bool(inputs.value("streaming", row)),
        includes_prompt=not (limits.excludes_prompt if exclude is None else exclude),
        wants_measures=bool(inputs.value("return_perf_metrics", row)),
        num_sequences=1 if generation.beam else count,
        num_beams=width if asked is None else min(count, width),
        counts=frozenset(name for name in _COUNTS if _is_set(inputs, f"return_{name}", row)),
    )


def _is_set(inputs: Inputs, name: str, row: int) -> bool:
    """A switch that not every release has."""
    return inputs.declares(name) and bool(inputs.value(name, row))


def _refuse_unserved(inputs: Inputs, row: int) -> None:
    for name, needed in NEEDS_GPU.items():
        if name in inputs:
            raise RequestError(
                f"input {name} needs {needed}, which the reference engine does not have",
                "leave it out, or serve this repository with TensorRT-LLM on a GPU",
                code="REQ-UNSERVED",
            )
    if inputs.value("beam_search_diversity_rate", row):
        raise RequestError(
            "input beam_search_diversity_rate: the reference engine keeps the most likely beams",
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


def _bias(inputs: Inputs, row: int, vocab_size: int) -> Array | None:
    """One number a token. A shorter one is of a tokenizer with fewer tokens than the model has rows for."""
    bias = inputs.array("embedding_bias", row)
    if bias is None or not bias.size:
        return None
    return np.pad(bias, (0, vocab_size - len(bias))) if len(bias) < vocab_size else bias


def _beam(inputs: Inputs, row: int, max_beam_width: int) -> BeamRules | None:
    """Left-out values are TensorRT-LLM's: no length penalty, and stop at the first `beam_width` finished beams."""
    width = inputs.value("beam_width", row)
    if width in (None, 1):
        return None
    if not 1 < width <= max_beam_width:
        raise RequestError(
            f"input beam_width is {width}, the model takes 1 to {max_beam_width}",
            "ask for fewer, or set max_beam_width in the model's config.pbtxt",
            code="REQ-BEAM",
        )
    if inputs.value("streaming", row):
        raise RequestError(
            "input streaming: beams are known only at the end", "leave streaming or the beams out", code="REQ-BEAM"
        )
    length_penalty, early_stopping = inputs.value("len_penalty", row), inputs.value("early_stopping", row)
    return BeamRules(width, length_penalty or 0.0, early_stopping is None or bool(early_stopping))


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
