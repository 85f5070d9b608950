"""A draft whose head has the rows of some tokens only."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from lone_sequence import lone_sequence
from tiny_trtllm import tiny_model, write_checkpoint
from trtkit.checkpoints.draft_vocabulary import DRAFT_VOCABULARY_FILE
from trtkit.reference.draft_target import generate_with_draft
from trtkit.reference.engine import Engine
from trtkit.reference.request import GenerationRequest
from trtkit.reference.sampling.params import SamplingParams

KEPT = list(range(0, 97, 3))
PROMPT = [5, 17, 3, 88, 40]


@pytest.fixture
def trimmed_checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "trimmed"
    shutil.copytree(tiny_checkpoint, folder)
    (folder / DRAFT_VOCABULARY_FILE).write_text(json.dumps({"token_ids": KEPT}))
    return folder


def logits_of(folder: Path) -> torch.Tensor:
    """The logits after every token of PROMPT."""
    return lone_sequence(folder).feed(PROMPT)


@pytest.mark.parametrize("tied", [False, True])
def test_kept_tokens_have_the_logits_of_the_whole_head_and_the_others_none(tied: bool, tmp_path: Path) -> None:
    folder = write_checkpoint(tiny_model(seed=3, tie_word_embeddings=tied), tmp_path / "model")
    whole = logits_of(folder)
    (folder / DRAFT_VOCABULARY_FILE).write_text(json.dumps({"token_ids": KEPT}))
    trimmed = logits_of(folder)
    assert trimmed.shape == whole.shape
    torch.testing.assert_close(trimmed[:, KEPT], whole[:, KEPT])
    left_out = torch.ones(97, dtype=torch.bool)
    left_out[KEPT] = False
    assert trimmed[:, left_out].eq(-torch.inf).all()


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.0, top_k=0, top_p=0.9, seed=4)])
def test_an_engine_chooses_only_kept_tokens(trimmed_checkpoint: Path, sampling: SamplingParams) -> None:
    engine = Engine.load(trimmed_checkpoint, max_batch_size=2, max_seq_len=128)
    outputs = engine.generate(GenerationRequest("a", tuple(PROMPT), 40, sampling))
    chosen = [token_id for output in outputs for token_id in output.token_ids]
    assert len(chosen) == 40 and set(chosen) <= set(KEPT)


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.0, top_k=0, seed=4)])
def test_a_trimmed_draft_changes_no_answer(
    trimmed_checkpoint: Path, tiny_checkpoint: Path, sampling: SamplingParams
) -> None:
    target, draft = (Engine.load(p, max_batch_size=2, max_seq_len=128) for p in (tiny_checkpoint, trimmed_checkpoint))
    request = GenerationRequest("a", tuple(PROMPT), 40, sampling)
    plain = [token_id for output in target.generate(request) for token_id in output.token_ids]
    drafted = generate_with_draft(target, draft, request, 3)
    assert list(drafted.token_ids) == plain
    assert sum(acceptance.num_accepted_tokens for acceptance in drafted.acceptances) > 0


def test_logits_of_a_trimmed_draft_are_accepted_exactly(trimmed_checkpoint: Path, tiny_checkpoint: Path) -> None:
    """A token that the draft cannot propose has no probability there, and the target's own one in the answer."""
    target, draft = (Engine.load(p, max_batch_size=2, max_seq_len=128) for p in (tiny_checkpoint, trimmed_checkpoint))
    request = GenerationRequest("a", tuple(PROMPT), 60, SamplingParams(temperature=1.0, top_k=0, seed=4))
    drafted = generate_with_draft(target, draft, request, 3, by_logits=True)
    assert len(drafted.token_ids) == 60
    assert set(drafted.token_ids) - set(KEPT)
    assert sum(acceptance.num_accepted_tokens for acceptance in drafted.acceptances) > 0
