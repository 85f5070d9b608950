"""The tensors of the six models: NVIDIA's, whatever trtkit adds, and what drifted between releases."""

import numpy as np
import pytest
from trtkit.serving.contract import BLS, ENSEMBLE, TARGET, bls_contract, contracts, llm_contract
from trtkit.serving.tensor import one_row

OLDER = {"random_seed", "min_length"}
NEWER = {"seed", "min_tokens", "return_num_input_tokens", "return_num_output_tokens"}
NAMES = {"preprocessing", "postprocessing", TARGET, "tensorrt_llm_draft", ENSEMBLE, BLS}


def test_a_build_with_a_draft_has_six_models_and_one_without_has_five() -> None:
    assert set(contracts("1.2.1", with_draft=True)) == NAMES
    assert set(contracts("1.2.1", with_draft=False)) == NAMES - {"tensorrt_llm_draft"}


def test_no_tensor_is_declared_twice() -> None:
    for model in contracts("1.2.1", with_draft=True).values():
        for tensors in (model.inputs, model.outputs):
            names = [tensor.name for tensor in tensors]
            assert len(names) == len(set(names)), model.name


def test_only_lengths_are_required_of_the_engine() -> None:
    required = [tensor.name for tensor in llm_contract(TARGET, "1.2.1").inputs if not tensor.optional]
    assert required == ["input_lengths", "request_output_len"]


def test_a_client_of_nvidias_models_has_to_send_text_and_length_alone() -> None:
    for model in (bls_contract(), contracts("1.2.1", with_draft=False)[ENSEMBLE]):
        assert [tensor.name for tensor in model.inputs if not tensor.optional] == ["text_input", "max_tokens"]


def test_old_releases_have_the_old_names() -> None:
    old = {tensor.name for tensor in llm_contract(TARGET, "0.19.0").inputs}
    new = {tensor.name for tensor in llm_contract(TARGET, "0.20.0").inputs}
    assert old - new == {"random_seed", "min_length"}
    assert new - old == {"seed", "min_tokens", "return_num_input_tokens", "return_num_output_tokens"}


@pytest.mark.parametrize("model", [ENSEMBLE, BLS])
def test_clients_of_new_releases_may_ask_for_the_numbers_of_tokens(model: str) -> None:
    contract = contracts("0.20.0", with_draft=True)[model]
    assert contract.declares("return_num_input_tokens")
    assert contract.declares("return_num_output_tokens")
    assert {"num_input_tokens", "num_output_tokens"} <= {tensor.name for tensor in contract.outputs}


def test_clients_of_old_releases_find_the_old_names_and_trtkits_own_client_the_new_ones() -> None:
    old = contracts("0.19.0", with_draft=True)
    assert {name for name in NEWER | OLDER if old[ENSEMBLE].declares(name)} == OLDER
    assert {name for name in NEWER | OLDER if old[BLS].declares(name)} == OLDER | {"seed", "min_tokens"}
    assert "num_input_tokens" not in {tensor.name for tensor in old[ENSEMBLE].outputs}
    assert {tensor.name for tensor in old[BLS].outputs} == {tensor.name for tensor in bls_contract().outputs}


def test_inputs_whose_lengths_differ_between_requests_may_share_a_batch() -> None:
    fixed = {tensor.name for tensor in llm_contract(TARGET, "1.2.1").inputs if not (tensor.scalar or tensor.ragged)}
    assert fixed == {"mrope_rotary_cos_sin", "mrope_position_deltas"}


def test_a_row_has_the_batch_axis_and_the_declared_type() -> None:
    assert one_row(bls_contract().input("max_tokens"), 5).tolist() == [[5]]
    assert one_row(bls_contract().input("temperature"), 1).dtype == np.float32
    assert one_row(bls_contract().input("stop_words"), ["a", "é"]).tolist() == [[b"a", "é".encode()]]
    assert one_row(bls_contract().input("text_input"), "a\0b\0").tolist() == [[b"a\0b\0"]]
    assert bls_contract().input("stop_words").wire_dtype == "BYTES"
    assert one_row(llm_contract(TARGET, "1.2.1").input("stop_words_list"), np.zeros((2, 3))).shape == (1, 2, 3)
