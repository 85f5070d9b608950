"""`tensorrt_llm` tensors to the engine's request: TensorRT-LLM's meanings, and a name in every refusal."""

from typing import Any

import numpy as np
import pytest
from trtkit.errors import InputError, RequestError
from trtkit.reference.request import BeamRules, Returns
from trtkit.serving.arguments import ModelArguments
from trtkit.serving.contract import TARGET, llm_contract
from trtkit.serving.inputs import Inputs
from trtkit.serving.tensor import NUMPY_DTYPE, one_row
from trtkit.serving.words import pack_words
from trtkit.standin.parameters import check_parameters
from trtkit.standin.requests import LlmRequest, ModelLimits, read_request


def read(version: str = "1.2.1", *, excludes_prompt: bool = False, beams: int = 4, **values: Any) -> LlmRequest:
    contract = llm_contract(TARGET, version)
    values = {"input_ids": [5, 6, 7], "input_lengths": 3, "request_output_len": 4, **values}
    arrays = {}
    for name, value in values.items():
        tensor = contract.input(name)
        # Triton's reshape: a scalar reaches the model without its last axis.
        row = one_row(tensor, value)
        arrays[name] = row.reshape(1) if tensor.scalar else row
        assert arrays[name].dtype == NUMPY_DTYPE[tensor.dtype]
    return read_request(Inputs(arrays, contract, "id"), 0, "e1", ModelLimits(6, excludes_prompt, beams))


def test_the_prompt_ends_at_input_lengths() -> None:
    assert read(input_ids=[5, 6, 7, 0, 0]).generation.prompt_ids == (5, 6, 7)


def test_without_sampling_inputs_the_answer_is_greedy() -> None:
    assert read().generation.sampling.is_greedy


def test_temperature_alone_stays_greedy_as_in_tensorrt_llm() -> None:
    assert read(temperature=2.0).generation.sampling.is_greedy


@pytest.mark.parametrize(
    ("values", "top_k", "top_p"),
    [
        ({"runtime_top_k": 5}, 5, 1.0),
        ({"runtime_top_p": 0.5}, 0, 0.5),
        ({"runtime_top_k": 5, "runtime_top_p": 0.5}, 5, 0.5),
    ],
)
def test_top_k_and_top_p_leave_each_other_without_effect(values: dict[str, Any], top_k: int, top_p: float) -> None:
    sampling = read(**values).generation.sampling
    assert (sampling.top_k, sampling.top_p) == (top_k, top_p)
    assert not sampling.is_greedy


def test_sampling_values_reach_the_engine() -> None:
    given = {"temperature": 0.5, "repetition_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    sampling = read(seed=7, runtime_top_k=3, **given).generation.sampling
    assert {name: getattr(sampling, name) for name in given} == given
    assert sampling.seed == 7


def test_numbers_of_tokens_are_asked_for_one_by_one_where_the_release_has_them() -> None:
    assert read(return_num_output_tokens=True, return_num_input_tokens=False).counts == {"num_output_tokens"}
    assert read("0.19.0").counts == frozenset()


def test_old_releases_call_seed_and_minimum_otherwise() -> None:
    generation = read("0.19.0", random_seed=7, min_length=2).generation
    assert (generation.sampling.seed, generation.min_new_tokens) == (7, 2)


def test_a_negative_end_id_means_none() -> None:
    assert read(end_id=-1).generation.end_id is None
    assert read(end_id=2).generation.end_id == 2


def test_drafts_stop_words_and_switches_are_read() -> None:
    request = read(
        draft_input_ids=[1, 2], stop_words_list=pack_words([[8, 9], [3]]), streaming=True, return_perf_metrics=True
    )
    assert request.generation.draft_ids == (1, 2)
    assert request.generation.stop_words == ((8, 9), (3,))
    assert request.streaming
    assert request.wants_measures


def test_the_request_decides_over_the_parameter_whether_the_prompt_is_part_of_the_output() -> None:
    assert read().includes_prompt
    assert not read(excludes_prompt=True).includes_prompt
    assert read(excludes_prompt=True, exclude_input_in_output=False).includes_prompt


def test_draft_logits_and_a_threshold_are_read() -> None:
    logits = np.arange(12, dtype=np.float32).reshape(2, 6)
    generation = read(draft_input_ids=[1, 2], draft_logits=logits, draft_acceptance_threshold=0.5).generation
    assert generation.draft_logits is not None
    assert generation.draft_logits.tolist() == logits.tolist()
    assert generation.draft_acceptance_threshold == 0.5


def test_a_bias_shorter_than_the_vocabulary_leaves_the_rest_alone() -> None:
    bias = read(embedding_bias=[1.0, 0.0, -2.0]).generation.embedding_bias
    assert bias is not None and bias.tolist() == [1, 0, -2, 0, 0, 0]
    assert read(embedding_bias=[]).generation.embedding_bias is None


def test_bad_words_and_what_is_to_be_returned_are_read() -> None:
    generation = read(bad_words_list=pack_words([[8, 9]]), return_log_probs=True, return_context_logits=True).generation
    assert generation.bad_words == ((8, 9),)
    assert generation.returns == Returns(log_probs=True, context_logits=True)
    assert read(return_generation_logits=True).generation.returns == Returns(generation_logits=True)


def test_beams_have_tensorrt_llms_defaults() -> None:
    request = read(beam_width=3)
    assert request.generation.beam == BeamRules(3, length_penalty=0.0, early_stopping=True)
    assert (request.num_beams, request.num_sequences) == (3, 1)
    other = read(beam_width=3, len_penalty=0.7, early_stopping=False, num_return_sequences=2)
    assert other.generation.beam == BeamRules(3, pytest.approx(0.7), early_stopping=False)
    assert (other.num_beams, other.num_sequences) == (2, 1)
    assert read(beam_width=1).generation.beam is None


def test_without_beams_return_sequences_are_answers_of_their_own() -> None:
    assert (read(num_return_sequences=3).num_sequences, read().num_sequences) == (3, 1)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"lora_task_id": 1}, "lora_task_id"),
        ({"guided_decoding_guide": "x"}, "guided_decoding_guide"),
        ({"beam_search_diversity_rate": 0.5}, "beam_search_diversity_rate"),
        ({"beam_width": 5}, "beam_width"),
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 2, "streaming": True}, "streaming"),
        ({"num_return_sequences": 0}, "num_return_sequences"),
        ({"num_return_sequences": 2**31 - 1}, "num_return_sequences"),
        ({"bad_words_list": np.array([[1], [5]])}, "bad_words_list"),
        ({"input_lengths": 4}, "input_lengths"),
        ({"input_lengths": -1}, "input_lengths"),
        ({"stop_words_list": np.array([[1], [5]])}, "stop_words_list"),
    ],
)
def test_what_the_reference_engine_cannot_do_is_refused_by_name(values: dict[str, Any], name: str) -> None:
    with pytest.raises(RequestError) as error:
        read(**values)
    assert f"input {name}" in error.value.cause


def test_defaults_that_clients_send_are_not_refused() -> None:
    read(beam_width=1, return_log_probs=False, bad_words_list=pack_words([]), len_penalty=1.0, early_stopping=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [("decoding_mode", "medusa"), ("max_beam_width", "5"), ("gpt_model_type", "V1")],
)
def test_a_parameter_that_only_a_gpu_can_honour_is_refused(tmp_path: Any, key: str, value: str) -> None:
    arguments = ModelArguments(TARGET, {key: value}, True, tmp_path)
    with pytest.raises(InputError, match=f"PARAM-UNSERVED: tensorrt_llm/config.pbtxt: parameter {key} is '{value}'"):
        check_parameters(arguments)


def test_parameters_that_place_things_on_a_gpu_are_accepted(tmp_path: Any) -> None:
    parameters = {"kv_cache_free_gpu_mem_fraction": "0.4", "gpu_device_ids": "0,1", "decoding_mode": "top_k_top_p"}
    check_parameters(ModelArguments(TARGET, {**parameters, "sink_token_length": "${sink}"}, True, tmp_path))
