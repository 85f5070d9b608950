"""Requests to the BLS model: defaults of the build, and errors that name the input."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from trtkit.errors import RequestError
from trtkit.serving.build_defaults import BuildDefaults
from trtkit.serving.client_request import (
    ClientRequest,
    read_client_request,
    refuse_surely_too_long,
    refuse_too_long,
)
from trtkit.serving.context import RollingWindow
from trtkit.serving.contract import TARGET, bls_contract, llm_contract
from trtkit.serving.inputs import Inputs
from trtkit.serving.tensor import ModelContract, one_row

DEFAULTS = BuildDefaults(
    end_ids=(2, 3),
    pad_id=0,
    max_draft_len=4,
    adaptive=True,
    max_input_len=8,
    max_seq_len=12,
    excludes_prompt=False,
    vocab_size=50,
)


ROLLING = replace(DEFAULTS, rolling=RollingWindow(2, 6, 2))


def read(
    defaults: BuildDefaults = DEFAULTS, *, decoupled: bool = True, release: str = "1.2.1", **values: Any
) -> ClientRequest:
    contract = bls_contract(release)
    values = {"text_input": "hello", "max_tokens": 4, **values}
    arrays = {name: one_row(contract.input(name), value) for name, value in values.items() if value is not None}
    inputs = Inputs(arrays, contract, "id")
    return read_client_request(inputs, 0, llm_contract(TARGET, release), defaults, decoupled=decoupled)


@pytest.mark.parametrize("names", [("seed", "min_tokens"), ("random_seed", "min_length")])
def test_a_build_for_an_old_release_takes_the_old_names_and_the_new_ones(names: tuple[str, str]) -> None:
    request = read(release="0.19.0", **dict(zip(names, (7, 2), strict=True)))
    assert (dict(request.sampling), request.min_tokens) == ({"random_seed": [7]}, 2)


def test_what_is_left_out_comes_from_the_build() -> None:
    request = read()
    assert (request.end_ids, request.pad_id, request.max_draft_len, request.fixes_draft_len) == ((2, 3), 0, 4, False)
    assert request.sampling == {}
    assert not request.streaming


def test_what_is_sent_wins_over_the_build() -> None:
    request = read(end_id=7, pad_id=1, num_draft_tokens=2, stop_words=["a", ""])
    assert (request.end_ids, request.pad_id, request.max_draft_len) == ((7,), 1, 2)
    assert request.stop_words == ("a",)


def test_words_scores_and_acceptance_are_read() -> None:
    request = read(bad_words=["x", ""], embedding_bias_words=["a", "b"], embedding_bias_weights=[1.0, -2.0])
    assert (request.bad_words, request.bias_words, request.bias_weights) == (("x",), ("a", "b"), (1, -2))
    assert read(return_log_probs=True, return_context_logits=True).returns == {"log_probs", "context_logits"}
    assert request.returns == frozenset()
    assert [read(replace(DEFAULTS, by_logits=on)).by_logits for on in (True, False)] == [True, False]
    assert read(use_draft_logits=True).by_logits
    assert not read(replace(DEFAULTS, by_logits=True), use_draft_logits=False).by_logits


def test_return_sequences_have_seeds_of_their_own_and_the_first_the_clients() -> None:
    sequences = read(num_return_sequences=3, seed=7).sequences("seed")
    seeds = [int(np.asarray(each.sampling["seed"]).reshape(-1)[0]) for each in sequences]
    assert seeds[0] == 7
    assert len(set(seeds)) == len({each.request_id for each in sequences}) == 3
    assert len(read().sequences("seed")) == 1


def test_a_draft_length_in_the_request_is_fixed() -> None:
    assert read(num_draft_tokens=4).fixes_draft_len


def test_sampling_inputs_get_the_engines_names() -> None:
    sampling = read(top_k=3, top_p=0.5, temperature=0.7, length_penalty=1.0, seed=9).sampling
    assert {name: value.item() for name, value in sampling.items()} == pytest.approx(
        {"runtime_top_k": 3, "runtime_top_p": 0.5, "temperature": 0.7, "len_penalty": 1.0, "seed": 9}
    )


def test_an_old_release_gets_its_own_name_for_the_seed() -> None:
    contract = bls_contract()
    values = {"text_input": "a", "max_tokens": 1, "seed": 9}
    inputs = Inputs({name: one_row(contract.input(name), value) for name, value in values.items()}, contract, "")
    request = read_client_request(inputs, 0, llm_contract(TARGET, "0.19.0"), DEFAULTS, decoupled=True)
    assert request.sampling == {"random_seed": 9}


def test_the_prompt_is_part_of_a_whole_answer_unless_it_is_excluded() -> None:
    assert read().includes_prompt
    assert not read(exclude_input_in_output=True).includes_prompt
    assert not read(stream=True).includes_prompt
    assert not read(replace(DEFAULTS, excludes_prompt=True)).includes_prompt


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text_input": None}, "REQ-INPUT: input text_input is missing"),
        ({"max_tokens": 0}, "REQ-TOKENS: input max_tokens must be at least 1, got 0"),
        ({"max_tokens": [1, 2]}, "REQ-INPUT: input max_tokens must hold one value, got 2"),
        ({"num_draft_tokens": 5}, "SPEC-K: input num_draft_tokens must be at most 4, got 5"),
        ({"num_draft_tokens": -1}, "SPEC-K: input num_draft_tokens must not be negative, got -1"),
        ({"beam_width": 2}, "REQ-UNSERVED: input beam_width must be 1 here"),
        ({"num_return_sequences": 0}, "REQ-SEQUENCES: input num_return_sequences must be between 1 and 128, got 0"),
        ({"num_return_sequences": 2**31 - 1}, "REQ-SEQUENCES: input num_return_sequences must be between 1 and 128"),
        ({"min_tokens": -1}, "REQ-TOKENS: input min_tokens must be between 0 and max_tokens 4, got -1"),
        ({"min_tokens": 5}, "REQ-TOKENS: input min_tokens must be between 0 and max_tokens 4, got 5"),
        ({"embedding_bias_words": ["a", ""], "embedding_bias_weights": [1.0, 2.0, 3.0]}, "REQ-INPUT: input embedding_"),
        ({"guided_decoding_guide": "x"}, "REQ-UNSERVED: input guided_decoding_guide"),
        ({"text_input": b"\xff"}, "REQ-INPUT: input text_input is not UTF-8"),
    ],
)
def test_an_impossible_request_is_refused_by_the_name_of_the_input(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as error:
        read(**values)
    assert str(error.value).startswith(message)


def test_words_and_weights_that_pad_a_batchs_shorter_rows_go_together() -> None:
    request = read(embedding_bias_words=["a", "", "b"], embedding_bias_weights=[1.0, 0.0, 2.0])
    assert (request.bias_words, request.bias_weights) == (("a", "b"), (1.0, 2.0))


def test_switches_that_are_off_are_not_refused() -> None:
    assert read(return_log_probs=False, beam_width=1).max_tokens == 4


def test_a_build_without_a_draft_says_so() -> None:
    with pytest.raises(RequestError, match="must be 0, because the build has no draft"):
        read(replace(DEFAULTS, max_draft_len=0), num_draft_tokens=2)


def test_streaming_needs_decoupled_models() -> None:
    with pytest.raises(RequestError, match=r"(?s)REQ-STREAMING: input stream.*--no-stream"):
        read(decoupled=False, stream=True)


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        (0, 1, "REQ-EMPTY"),
        (9, 1, "text_input has 9 tokens, the limit is max_input_len 8"),
        (8, 5, r"(?s)max_tokens: 8 prompt tokens and 5 new ones exceed 12.*at most 4"),
    ],
)
def test_lengths_are_refused_with_the_limit_they_exceed(prompt: int, new: int, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        refuse_too_long(prompt, new, DEFAULTS)


def test_a_text_of_megabytes_is_refused_without_encoding_it() -> None:
    with pytest.raises(RequestError, match="REQ-LENGTH: input text_input has more than 100 tokens"):
        refuse_surely_too_long("x" * 1000, 10, DEFAULTS)
    refuse_surely_too_long("x" * 89, 10, DEFAULTS)


def test_a_session_may_be_longer_than_the_window_but_not_without_end() -> None:
    refuse_too_long(1000, 1000, ROLLING)
    refuse_surely_too_long("x" * 100_000, 10, ROLLING)
    with pytest.raises(RequestError, match="REQ-EMPTY"):
        refuse_too_long(0, 1, ROLLING)
    with pytest.raises(RequestError, match="REQ-LENGTH: input text_input has 5242880 bytes"):
        refuse_surely_too_long("x" * (5 << 20), 10, ROLLING)


@pytest.mark.parametrize(("parameters", "is_chat"), [({}, False), ({"apply_chat_template": True}, True)])
def test_a_request_parameter_asks_for_the_chat_template(parameters: dict[str, Any], is_chat: bool) -> None:
    contract = bls_contract()
    arrays = {name: one_row(contract.input(name), value) for name, value in (("text_input", "a"), ("max_tokens", 1))}
    inputs = Inputs(arrays, contract, "", parameters)
    assert read_client_request(inputs, 0, llm_contract(TARGET, "1.2.1"), DEFAULTS, decoupled=True).is_chat == is_chat


def test_a_parameter_that_is_no_switch_is_refused() -> None:
    with pytest.raises(RequestError, match="REQ-INPUT: parameter apply_chat_template must be true or false, got 'yes'"):
        Inputs({}, ModelContract("m", (), ()), "", {"apply_chat_template": "yes"}).flag("apply_chat_template")
