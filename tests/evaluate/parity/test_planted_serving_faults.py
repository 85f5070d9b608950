"""Faults planted into a served deployment, as patches of the code that its BLS process runs, are found and named."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deployed_tiny import Tensors, change_weights, copy_of, deployed_tiny
from trtkit.builds import Build
from trtkit.cli.main import cli
from trtkit.server.triton_server import TritonServer
from trtkit.serving.contract import BLS

pytestmark = pytest.mark.tritonserver
MODEL = "from trtkit.serving.bls import DraftTarget as TritonPythonModel  # noqa: F401\n"

IGNORES_STOP_WORDS = """
from trtkit.serving.words import StopWords

StopWords.push = lambda self, text: (text, False)
StopWords.finish = lambda self: ""
"""
DRAFTS_ONE_TOO_MANY = """
from trtkit.draft_length import FixedDraftLength

original = FixedDraftLength.next
FixedDraftLength.next = lambda self: original(self) + 1
"""
DRAFTS_ONE_TOO_FEW = DRAFTS_ONE_TOO_MANY.replace("+ 1", "- 1")
DROPS_A_TOKEN_AT_A_BLOCK_BOUNDARY = """
from trtkit.serving.draft_target import DraftTargetRun

original = DraftTargetRun.steps

def steps(self):
    position = len(self.generation.prompt_ids)
    for tokens in original(self):
        kept = tuple(token for place, token in enumerate(tokens, position) if place % 32)
        position += len(tokens)
        if kept:
            yield kept

DraftTargetRun.steps = steps
"""
ACCEPTS_EVERY_DRAFT = """
from trtkit.serving.draft_target import DraftTargetRun

original = DraftTargetRun._verify
DraftTargetRun._verify = lambda self, draft_ids, *rest: (*draft_ids, original(self, draft_ids, *rest)[-1])
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    made = deployed_tiny(tmp_path_factory.mktemp("tiny"))
    assert CliRunner().invoke(cli, ["parity", "record", str(made.folder), "--limit", "6"]).exit_code == 0
    return made


@pytest.fixture
def broken(build: Build, tmp_path: Path) -> Build:
    return copy_of(build, tmp_path / "build")


def plant(build: Build, patch: str) -> None:
    (build.repository / BLS / "1" / "model.py").write_text(MODEL + patch)


def swap_gate_and_up(tensors: Tensors) -> None:
    mlp = "transformer.layers.0.mlp."
    tensors[mlp + "fc.weight"], tensors[mlp + "gate.weight"] = tensors[mlp + "gate.weight"], tensors[mlp + "fc.weight"]


def check(build: Build) -> tuple[int, dict[str, Any], str]:
    command = ["parity", "check", str(build.folder), "--limit", "6", "--draft-len", "0", "--draft-len", "2", "--json"]
    result = CliRunner().invoke(cli, command)
    assert result.stdout, result.stderr
    return result.exit_code, json.loads(result.stdout), result.stderr


def faults_of(document: dict[str, Any]) -> list[str]:
    return [found["fault"] for found in document["diagnosis"]]


def test_a_clean_deployment_has_no_diagnosis(build: Build) -> None:
    exit_code, document, _ = check(build)
    assert (exit_code, document["verdict"], document["diagnosis"]) == (0, "identical", [])
    conditions = {case["condition"] for prompt in document["prompts"] for case in prompt["cases"]}
    assert "stop-word" in conditions


@pytest.mark.slow
def test_fifty_clean_checks_of_one_server_raise_no_alarm(build: Build) -> None:
    """Streams, stop words, cancelled and concurrent requests, whose timing differs each time."""
    with TritonServer(build.folder):
        for turn in range(50):
            exit_code, document, errors = check(build)
            assert (exit_code, document["verdict"], document["diagnosis"]) == (0, "identical", []), (turn, errors)


@pytest.mark.parametrize(
    ("patch", "fault"),
    [
        (IGNORES_STOP_WORDS, "stop-word"),
        (DRAFTS_ONE_TOO_MANY, "draft-length"),
        (DRAFTS_ONE_TOO_FEW, "draft-length"),
        (DROPS_A_TOKEN_AT_A_BLOCK_BOUNDARY, "streaming"),
    ],
    ids=["stop word ignored", "drafts one too many", "drafts one too few", "drops a token at a block boundary"],
)
def test_a_fault_of_the_serving_code_is_named(patch: str, fault: str, broken: Build) -> None:
    plant(broken, patch)
    exit_code, document, errors = check(broken)
    assert (exit_code, document["verdict"], faults_of(document)) == (1, "different", [fault])
    assert f"{fault}: " in errors


def test_a_verification_that_accepts_too_much_is_named(broken: Build) -> None:
    change_weights(broken, "draft", swap_gate_and_up)  # else every draft deserves it
    assert check(broken)[1]["verdict"] == "identical"
    plant(broken, ACCEPTS_EVERY_DRAFT)
    exit_code, document, _ = check(broken)
    assert (exit_code, faults_of(document)) == (1, ["speculation"])
