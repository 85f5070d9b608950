"""The converted checkpoint, layer by layer: a fault is found in the part of the layer where it was planted."""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from deployed_tiny import Tensors, change_checkpoint, change_weights, copy_of, deployed_tiny, drop_last_layer
from documented_reports import undocumented
from trtkit.builds import Build
from trtkit.cli.main import cli
from trtkit.errors import DifferenceError, InputError
from trtkit.evaluate.checkpoint.drift import first_unexplained, judge_drift, points_of
from trtkit.evaluate.checkpoint.run import compare_checkpoint
from trtkit.evaluate.oracle.record_choice import PromptChoice
from trtkit.evaluate.oracle.tolerance import NumericProfile

CHOICE = PromptChoice(limit=8)
FLOAT32, BFLOAT16 = (NumericProfile(dtype, 2, 64) for dtype in ("float32", "bfloat16"))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    return deployed_tiny(tmp_path_factory.mktemp("tiny"), dtype=request.param)


@pytest.fixture
def broken(build: Build, tmp_path: Path) -> Build:
    return copy_of(build, tmp_path / "build")


def scale(name: str, rows: slice, factor: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name][rows] *= factor

    return change


def swap(one: str, other: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[one], tensors[other] = tensors[other], tensors[one]

    return change


LAYER = "transformer.layers.1."
FAULTS = [
    (scale("transformer.vocab_embedding.weight", slice(None), 1.1), "embedding"),
    (scale(LAYER + "attention.qkv.weight", slice(64 + 16, 64 + 32), 0.0), "layer 1 attention"),  # a key head
    (scale(LAYER + "attention.dense.weight", slice(0, 8), 0.5), "layer 1 attention"),
    (scale(LAYER + "input_layernorm.weight", slice(None), 1.2), "layer 1 attention"),
    (swap(LAYER + "mlp.fc.weight", LAYER + "mlp.gate.weight"), "layer 1 mlp"),
    (scale(LAYER + "mlp.proj.weight", slice(0, 8), 0.5), "layer 1 mlp"),
    (scale("transformer.ln_f.weight", slice(0, 32), 1.2), "logits"),
    (scale("lm_head.weight", slice(0, 40), 0.5), "logits"),
]


def test_a_clean_checkpoint_is_explained_by_rounding(build: Build) -> None:
    document = compare_checkpoint(build, CHOICE)
    assert (document["verdict"], document["first_fault"]) == ("explained", None)
    assert undocumented(document) == set()
    assert len(document["points"]) == 2 * 3 + 2
    oracle, deployed = document["perplexity"]["oracle"], document["perplexity"]["deployed"]
    assert deployed == pytest.approx(oracle, rel=0.05)
    exact = document["dtype"] == "float32"
    assert document["top1_agreement"] == 1.0 if exact else document["top1_agreement"] > 0.9
    assert document["mean_kl"] < (1e-8 if exact else 0.01)


@pytest.mark.parametrize(("fault", "place"), FAULTS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_fault_is_found_where_it_is(fault: Callable[[Tensors], None], place: str, broken: Build) -> None:
    change_weights(broken, "target", fault)
    document = compare_checkpoint(broken, CHOICE)
    assert document["verdict"] == "different"
    assert document["first_fault"]["name"] == place


def test_a_wrong_rope_base_shows_in_the_first_attention(broken: Build) -> None:
    change_checkpoint(broken, "target", rotary_base=500000.0)
    assert compare_checkpoint(broken, CHOICE)["first_fault"]["name"] == "layer 0 attention"


def test_a_missing_layer_is_named(broken: Build) -> None:
    drop_last_layer(broken, "target", 3)
    with pytest.raises(DifferenceError, match=r"(?s)has 2 layers, the original 3.*transformer\.layers\.2"):
        compare_checkpoint(broken, CHOICE)


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8", "int4"])
def test_a_coarser_cache_is_explained_and_a_fault_beside_it_is_not(kv_dtype: str, tmp_path: Path) -> None:
    made = deployed_tiny(tmp_path, dtype="bfloat16", kv_dtype=kv_dtype)
    document = compare_checkpoint(made, CHOICE)
    assert (document["verdict"], document["kv_dtype"]) == ("explained", kv_dtype)
    assert document["mean_kl"] > 0
    broken = copy_of(made, tmp_path / "broken")
    change_weights(broken, "target", swap(LAYER + "mlp.fc.weight", LAYER + "mlp.gate.weight"))
    assert compare_checkpoint(broken, CHOICE)["first_fault"]["name"] == "layer 1 mlp"


def test_prompts_of_one_token_are_refused(build: Build, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("a\n")
    with pytest.raises(InputError, match="no prompt has two tokens"):
        compare_checkpoint(build, PromptChoice(tmp_path / "prompts.txt"))


def test_the_draft_can_be_followed_too(build: Build) -> None:
    assert compare_checkpoint(build, CHOICE, role="draft")["verdict"] == "explained"


def test_the_command_names_the_tensors_and_exits_with_1(broken: Build) -> None:
    change_weights(broken, "target", FAULTS[4][0])
    result = CliRunner().invoke(cli, ["parity", "checkpoint", str(broken.folder)])
    assert result.exit_code == 1
    assert "transformer.layers.1.mlp.fc" in result.stderr and "layer 1 mlp" in result.stderr
    assert "KL" in result.stdout
    written = json.loads((broken.folder / "parity" / "checkpoint-target.json").read_text())
    suite = ElementTree.parse(broken.folder / "parity" / "checkpoint-target-junit.xml").find("testsuite")
    assert written["command"] == f"trtkit parity checkpoint {broken.folder}"
    assert suite is not None and len(suite) == len(written["points"]) + len(written["skipped"])
    failed = [case.attrib["name"] for case in suite if case.find("failure") is not None]
    assert failed[0] == "layer 1 mlp" and "embedding" not in failed
    attached = [case.findtext("system-out", "") for case in suite if case.find("failure") is not None]
    assert all(f"[[ATTACHMENT|{broken.folder}/parity/checkpoint-target.html]]" in text for text in attached)
    page = (broken.folder / "parity" / "checkpoint-target.html").read_text()
    assert "layer 1 mlp: relative error" in page and page.count("<figure>") == 3
    summary = (broken.folder / "parity" / "checkpoint-target.md").read_text()
    assert "- **layer 1 mlp: relative error" in summary and "transformer.layers.1.mlp.fc" in summary


def test_prompts_that_were_left_out_are_in_every_report(build: Build, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Once upon a time\n" + "more and more " * 200 + "\n")
    document = compare_checkpoint(build, PromptChoice(tmp_path / "prompts.txt"))
    assert [entry["name"] for entry in document["skipped"]] == ["prompts-2"]
    for ending in (".md", ".html", "-junit.xml"):
        assert "prompts-2" in (build.folder / "parity" / f"checkpoint-target{ending}").read_text()


def test_agreement_is_also_told_by_position(broken: Build, tmp_path: Path) -> None:
    """Far positions alone are wrong, as with a rotation that is scaled beyond some length."""
    change_checkpoint(broken, "target", rotary_base=20000.0)
    (tmp_path / "prompts.txt").write_text("One after the other they came, and none of them knew the way.\nTwo words\n")
    document = compare_checkpoint(broken, PromptChoice(tmp_path / "prompts.txt"))
    stretches = document["by_position"]
    assert stretches[0]["first"] == 0 and 2 <= len(stretches) <= 24
    assert all(after["first"] == before["last"] + 1 for before, after in pairwise(stretches))
    assert sum(stretch["num_positions"] for stretch in stretches) == document["num_positions"]
    assert max(stretch["max_kl"] for stretch in stretches) == document["max_kl"]
    assert stretches[0]["max_kl"] < stretches[-1]["max_kl"]  # the first token is rotated by nothing


def test_weights_that_are_no_numbers_are_found_and_the_report_stays_json(broken: Build) -> None:
    def damage(tensors: Tensors) -> None:
        tensors["transformer.layers.1.mlp.proj.weight"][3, 3] = math.nan

    change_weights(broken, "target", damage)
    result = CliRunner().invoke(cli, ["parity", "checkpoint", str(broken.folder)])
    assert result.exit_code == 1, result.exception
    assert "layer 1 mlp: relative error no number" in result.stderr and "KL no number" in result.stdout
    assert "mlp.router" not in result.stderr  # a tensor that this family has not

    def refuse(name: str) -> None:
        raise AssertionError(name)

    written = (broken.folder / "parity" / "checkpoint-target.json").read_text()
    document = json.loads(written, parse_constant=refuse)
    assert (document["max_kl"], document["max_logit_error"], document["perplexity"]["deployed"]) == (None, None, None)


def test_logits_beyond_all_bounds_have_no_perplexity(broken: Build) -> None:
    change_weights(broken, "target", lambda tensors: tensors["lm_head.weight"].mul_(1e5))
    document = compare_checkpoint(broken, CHOICE)
    assert (document["first_fault"]["name"], document["perplexity"]["deployed"]) == ("logits", None)


def test_points_alternate_between_attention_and_mlp() -> None:
    names = [point.name for point in points_of(2)]
    assert names == ["embedding", "layer 0 attention", "layer 0 mlp", "layer 1 attention", "layer 1 mlp", "logits"]


def test_an_error_as_large_as_the_models_own_rounding_is_explained() -> None:
    probe = [0.001, 0.005, 0.01, 0.02, 0.03, 0.03]
    assert first_unexplained(judge_drift(probe, probe, [], BFLOAT16, BFLOAT16)) is None


def test_the_allowance_shrinks_with_the_dtype() -> None:
    probe = [0.0, 0.005, 0.01, 0.02, 0.03, 0.03]
    tolerances = [
        [drift.tolerance for drift in judge_drift(probe, probe, [], profile, BFLOAT16)]
        for profile in (BFLOAT16, FLOAT32)
    ]
    assert all(fine < coarse / 1000 for coarse, fine in zip(*tolerances, strict=True))


def test_not_a_number_is_never_explained() -> None:
    probe = [0.0, 0.01, 0.01, 0.01, 0.01, 0.01]
    fault = first_unexplained(judge_drift([0.0, 0.0, math.nan, 0.0, 0.0, 0.0], probe, [], BFLOAT16, BFLOAT16))
    assert fault is not None
    assert fault.point.name == "layer 0 mlp"
