"""What the checks say the reference backend executes is what its engine accepts, model by model."""

from pathlib import Path

import pytest
from deployments import Change, deployment_of
from tiny import FAMILIES, tiny_checkpoint
from trtkit.checking.rule import run_rules
from trtkit.checking.rules.version_limits import LIMIT_OF_VERSION_RULES, unexecuted
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.reference.model.config import read_config

REFERENCE = {"backend": "reference", "gpu": ...}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_executed_and_raises_nothing(family: str, tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "source", family)
    convert_to(source, tmp_path / "out", ConversionOptions(dtype="float32"))
    read_config(tmp_path / "out")
    assert list(unexecuted(read_model_spec(source))) == []


def test_what_is_not_executed_is_named(tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, Change(yaml=REFERENCE, target={"hidden_act": "relu"}))
    (finding,) = run_rules(LIMIT_OF_VERSION_RULES, deployment, "pair.yaml")
    assert finding.code == "REFERENCE-LIMIT"
    assert "the activation relu" in finding.cause


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "qwen2"])
def test_models_that_are_executed_raise_nothing_even_on_several_ranks(family: str, tmp_path: Path) -> None:
    change = Change(
        yaml=REFERENCE | {"target.tensor_parallel": 4, "target.quantization": "fp8"},
        target={"sliding_window": 64},
        target_family=family,
    )
    assert run_rules(LIMIT_OF_VERSION_RULES, deployment_of(tmp_path, change), "pair.yaml") == []


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8", "int4"])
def test_every_cache_format_is_executed(kv_dtype: str, tmp_path: Path) -> None:
    change = Change(yaml=REFERENCE | {"kv_cache.dtype": kv_dtype}, target={"head_dim": 32})
    assert run_rules(LIMIT_OF_VERSION_RULES, deployment_of(tmp_path, change), "pair.yaml") == []


def test_an_int4_cache_needs_whole_groups_of_channels(tmp_path: Path) -> None:
    change = Change(yaml=REFERENCE | {"kv_cache.dtype": "int4"}, target={"head_dim": 40})
    finding = run_rules(LIMIT_OF_VERSION_RULES, deployment_of(tmp_path, change), "pair.yaml")[0]
    assert "INT4 KV cache for heads of 40" in finding.cause


ENGINE_SINKS = REFERENCE | {"attention_sinks": {"sink_tokens": 4, "window_tokens": 60, "strategy": "engine"}}


def test_the_engine_keeps_sinks_of_a_llama(tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, Change(yaml=ENGINE_SINKS))
    assert run_rules(LIMIT_OF_VERSION_RULES, deployment, "pair.yaml") == []


@pytest.mark.parametrize(
    ("family", "what"),
    [("gpt2", "learned positions"), ("mistral", "sliding windows"), ("gemma2", "capped attention scores")],
)
def test_models_whose_attention_takes_no_sinks_are_named(family: str, what: str, tmp_path: Path) -> None:
    change = Change(yaml=ENGINE_SINKS, target={"sliding_window": 64}, target_family=family)
    findings = run_rules(LIMIT_OF_VERSION_RULES, deployment_of(tmp_path, change), "pair.yaml")
    assert any(what in finding.cause and finding.where.endswith("strategy") for finding in findings)
