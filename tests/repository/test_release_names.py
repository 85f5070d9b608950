"""The rendered models use exactly the names that each release's backend has."""

import pytest
from trtkit.engines.release import Release, releases
from trtkit.repository.llmapi import llmapi_contract
from trtkit.serving.contract import llm_contract

WITH_ENGINES = [release for release in releases() if release.triton]
WITH_API = [release for release in releases() if release.llm_api]


@pytest.mark.parametrize("release", WITH_ENGINES, ids=lambda r: r.version)
def test_the_engine_models_tensors_are_the_releases(release: Release) -> None:
    assert release.triton is not None
    contract = llm_contract("tensorrt_llm", release.version)
    assert {tensor.name for tensor in contract.inputs} == set(release.triton.inputs)
    assert {tensor.name for tensor in contract.outputs} == set(release.triton.outputs)


@pytest.mark.parametrize("release", WITH_API, ids=lambda r: r.version)
def test_the_llmapi_models_tensors_are_the_releases(release: Release) -> None:
    assert release.llm_api is not None
    contract = llmapi_contract(release)
    assert tuple(tensor.name for tensor in contract.inputs) == release.llm_api.triton_inputs
    assert tuple(tensor.name for tensor in contract.outputs) == release.llm_api.triton_outputs
    assert [tensor.name for tensor in contract.inputs if not tensor.optional] == ["text_input"]
