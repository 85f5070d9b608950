"""What the checks say the reference backend executes is what its engine accepts, model by model."""

from pathlib import Path
from typing import Any

import pytest
from deployments import Change, deployment_of
from tiny import FAMILIES, tiny_checkpoint
from trtkit.checking.rule import run_rules
from trtkit.checking.rules.version_limits import LIMIT_OF_VERSION_RULES, unexecuted
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError
from trtkit.reference.model.config import read_config

REFERENCE = {"backend": "reference", "gpu": ...}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_refused_by_the_check_when_the_engine_refuses_it(family: str, tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "source", family)
    convert_to(source, tmp_path / "out", ConversionOptions(dtype="float32"))
    try:
        read_config(tmp_path / "out")
        accepted = True
    except CheckpointError:
        accepted = False
    assert accepted == (list(unexecuted(read_model_spec(source), 16)) == [])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"target_family": "gemma2"}, "Gemma2ForCausalLM"),
        ({"target": {"hidden_act": "gelu"}}, "the activation gelu"),
        ({"target": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}}, "rope of kind yarn"),
        ({"target_family": "mistral", "target": {"sliding_window": 1024}}, "a sliding window of 1024 tokens"),
    ],
)
def test_what_is_not_executed_is_named(changes: dict[str, Any], what: str, tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, Change(yaml=REFERENCE, **changes))
    (finding,) = run_rules(LIMIT_OF_VERSION_RULES, deployment, "pair.yaml")
    assert finding.code == "REFERENCE-LIMIT"
    assert what in finding.cause


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_models_that_are_executed_raise_nothing_even_on_several_ranks(family: str, tmp_path: Path) -> None:
    change = Change(
        yaml=REFERENCE | {"target.tensor_parallel": 4}, target={"sliding_window": 4096}, target_family=family
    )
    assert run_rules(LIMIT_OF_VERSION_RULES, deployment_of(tmp_path, change), "pair.yaml") == []
