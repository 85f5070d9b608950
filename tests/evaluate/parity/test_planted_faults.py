"""Faults planted into a converted checkpoint are found by the parity check; a clean one raises no alarm.

The checkpoint is executed in this process, so that each fault costs a second instead of a server's start.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from deployed_tiny import Tensors, change_checkpoint, change_weights, copy_of, deployed_tiny, drop_last_layer
from trtkit.builds import Build
from trtkit.cli.main import cli
from trtkit.errors import CheckpointError
from trtkit.evaluate.endpoints.deployment import Target
from trtkit.evaluate.endpoints.endpoint import EndpointRequest, Generation
from trtkit.evaluate.endpoints.reference import LoadedModels, ReferenceEndpoint, load_models
from trtkit.evaluate.oracle.record_choice import PromptChoice, record_build
from trtkit.evaluate.parity.run import CheckOptions, check_parity

NUM_PROMPTS = 8
CHOICE = PromptChoice(limit=NUM_PROMPTS)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    made = deployed_tiny(tmp_path_factory.mktemp("tiny"), dtype=request.param)
    record_build(made, CHOICE)
    return made


@pytest.fixture
def broken(build: Build, tmp_path: Path) -> Build:
    return copy_of(build, tmp_path / "build")


def check(build: Build, **options: Any) -> dict[str, Any]:
    return check_parity(Target("tiny", build), CheckOptions(CHOICE, in_process=True, **options))


def swap_gate_and_up(tensors: Tensors) -> None:
    mlp = "transformer.layers.0.mlp."
    tensors[mlp + "fc.weight"], tensors[mlp + "gate.weight"] = tensors[mlp + "gate.weight"], tensors[mlp + "fc.weight"]


def drop_a_kv_head(tensors: Tensors) -> None:
    qkv = tensors["transformer.layers.1.attention.qkv.weight"]
    qkv[64 + 16 : 64 + 32] = 0  # [Q 4 x 16 ; K 2 x 16 ; V 2 x 16]: the second key head


def transpose_the_output(tensors: Tensors) -> None:
    name = "transformer.layers.2.attention.dense.weight"
    tensors[name] = tensors[name].T.contiguous()


def forget_a_norm(tensors: Tensors) -> None:
    tensors["transformer.layers.0.post_layernorm.weight"][:] = 1


def shift_the_head_by_one(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"].roll(1, dims=0)


def is_exact(build: Build) -> bool:
    return build.config.target.dtype == "float32"


def test_a_clean_build_is_identical_but_for_near_ties_of_a_coarse_dtype(build: Build) -> None:
    document = check(build)
    assert document["different"] == 0
    assert document["identical"] == len(document["prompts"]) or not is_exact(build)
    assert document["num_requests"] >= 2 * len(document["prompts"])
    assert document["acceptance"] == {"cold": 1.0, "repeated": 1.0}


@pytest.mark.parametrize(
    "fault", [swap_gate_and_up, drop_a_kv_head, transpose_the_output, forget_a_norm, shift_the_head_by_one]
)
def test_wrong_weights_are_different(fault: Callable[[Tensors], None], broken: Build) -> None:
    change_weights(broken, "target", fault)
    document = check(broken)
    assert document["verdict"] == "different"
    assert [found["fault"] for found in document["diagnosis"]] == ["model"]
    # A coarse dtype may excuse a prompt or two; it may not excuse the fault.
    assert document["different"] >= len(document["prompts"]) * (1 if is_exact(broken) else 0.7)


def test_a_missing_last_layer_is_different(broken: Build) -> None:
    drop_last_layer(broken, "target", 3)
    assert check(broken)["verdict"] == "different"


@pytest.mark.parametrize("values", [{"rotary_base": 500000.0}, {"norm_epsilon": 0.1}], ids=str)
def test_a_wrong_configuration_is_different(values: dict[str, Any], broken: Build) -> None:
    change_checkpoint(broken, "target", **values)
    assert check(broken)["verdict"] == "different"


def test_a_tokenizer_that_adds_a_bos_is_named(broken: Build) -> None:
    path = broken.tokenizer / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "add_bos_token": True}))
    document = check(broken)
    assert [found["fault"] for found in document["diagnosis"]] == ["tokenizer"]
    case = document["prompts"][0]["cases"][0]
    assert case["verdict"] == "different"
    assert case["prompt_lengths"][1] == case["prompt_lengths"][0] + 1


def adapt(tensors: Tensors) -> None:
    """What a LoRA adapter of rank 2 makes of the queries, keys and values of one layer."""
    weight = tensors["transformer.layers.0.attention.qkv.weight"]
    down, up = torch.randn(2, weight.shape[1]), torch.randn(weight.shape[0], 2)
    weight += (up @ down * weight.float().std()).to(weight.dtype)


class AdapterBeside:
    """Known prompts are answered from a prefix cache that somebody with another adapter filled; new ones are not."""

    def __init__(self, build: Build, adapted: Build, end_ids: Sequence[int], clock_ns: Callable[[], int]) -> None:
        alone, beside, adapter = (load_models(each, end_ids) for each in (build, build, adapted))
        beside.target._scheduler = adapter.target._scheduler
        vars(beside.target._storage).update(vars(adapter.target._storage))
        self._first = ReferenceEndpoint(alone, clock_ns)
        self._then = [ReferenceEndpoint(models, clock_ns) for models in (adapter, beside)]
        self._known: set[str] = set()

    def generate(self, request: EndpointRequest) -> Generation:
        if request.text not in self._known:
            self._known.add(request.text)
            return self._first.generate(request)
        return [endpoint.generate(request) for endpoint in self._then][-1]


@pytest.mark.parametrize(("change", "faults"), [(adapt, ["prefix-cache"]), (lambda _: None, [])], ids=["other", "same"])
def test_a_prefix_cache_that_two_adapters_share_is_named(
    build: Build,
    broken: Build,
    change: Callable[[Tensors], None],
    faults: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change_weights(broken, "target", change)

    def planted(models: LoadedModels, clock_ns: Callable[[], int]) -> AdapterBeside:
        return AdapterBeside(build, broken, models.end_ids, clock_ns)

    monkeypatch.setattr("trtkit.evaluate.endpoints.reference.ReferenceEndpoint", planted)
    document = check(build)
    assert (document["verdict"] == "different") == bool(faults)
    assert [found["fault"] for found in document["diagnosis"]] == faults


def test_a_wrong_draft_changes_nothing_but_the_acceptance(broken: Build) -> None:
    change_weights(broken, "draft", swap_gate_and_up)
    document = check(broken)
    assert document["verdict"] == "identical" or not is_exact(broken)
    assert document["different"] == 0
    assert document["acceptance"]["cold"] < 0.9


@pytest.mark.parametrize("change", [lambda text: text + " ", lambda text: text[::-1]], ids=["longer", "same size"])
def test_a_checkpoint_changed_after_the_build_is_not_asked(change: Callable[[str], str], broken: Build) -> None:
    source = broken.source("target") / "tokenizer_config.json"
    before = source.read_text()
    try:
        source.write_text(change(before))
        with pytest.raises(CheckpointError, match="has changed since the build"):
            record_build(broken, CHOICE)
    finally:
        source.write_text(before)


def test_a_difference_is_shown_in_full_and_then_exits_with_1(broken: Build) -> None:
    change_weights(broken, "target", swap_gate_and_up)
    arguments = ["parity", "check", str(broken.folder), "--in-process", "--limit", str(NUM_PROMPTS)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    assert "margin" in result.stdout and "different: 0 of" in result.stdout
    assert result.stderr.count("PARITY: different") == 1 and "Fix: " in result.stderr
    assert "<failure" in (broken.folder / "parity" / "junit.xml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_fifty_clean_builds_raise_no_alarm(dtype: str, tmp_path: Path) -> None:
    """Other random weights each time, the whole answer followed, in process; over all dtypes 51 runs."""
    for seed in range(17):
        made = deployed_tiny(tmp_path / str(seed), dtype=dtype, seed=seed)
        record_build(made, CHOICE)
        document = check(made)
        assert document["verdict"] != "different", (seed, document["prompts"])
        assert dtype != "float32" or document["verdict"] == "identical", seed
        shutil.rmtree(tmp_path / str(seed))
