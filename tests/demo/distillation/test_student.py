"""The draft while it learns: its loss, its progress, and the checkpoint that comes out."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from trtkit.demo.distillation.classes import Class
from trtkit.demo.distillation.export import export
from trtkit.demo.distillation.lessons import NUM_CHOICES, Lessons
from trtkit.demo.distillation.loss import ChoiceLoss
from trtkit.demo.distillation.student import HIDDEN, Student, adopt_layer, huggingface_layers
from trtkit.demo.distillation.training import Training, agreement, restore, save
from trtkit.demo.draft import ROWS

VOCAB_SIZE = 40
KEPT = torch.arange(0, VOCAB_SIZE, 2)


def student(num_layers: int = 1, seed: int = 0) -> Student:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Student(torch.randn(VOCAB_SIZE, HIDDEN) * 0.1, KEPT, num_layers)


def test_the_fused_loss_and_its_gradients_are_those_of_the_formula() -> None:
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(700, 32, generator=draw, requires_grad=True)
    head = (torch.randn(50, 32, generator=draw) * 0.3).requires_grad_()
    rows = torch.stack([torch.randperm(50, generator=draw)[:4] for _ in range(700)])
    weights = torch.rand(700, 4, generator=draw) * (torch.rand(700, 4, generator=draw) > 0.3)
    logits = states @ head.T
    expected = (weights * (logits.logsumexp(1, keepdim=True) - logits.gather(1, rows))).sum() / 700
    found = ChoiceLoss.apply(states, head, rows, weights)
    assert found.item() == pytest.approx(expected.item(), rel=2e-3)
    for mine, theirs in zip(*(torch.autograd.grad(loss, (states, head)) for loss in (found, expected)), strict=True):
        assert (mine - theirs).norm() < 2**-6 * theirs.norm()  # products in bfloat16


def test_an_exported_draft_is_the_student_in_transformers(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    taught = student(num_layers=2)
    export(taught, VOCAB_SIZE, tmp_path)
    tensors = load_file(tmp_path / "layers.safetensors")
    assert json.loads((tmp_path / "draft_vocabulary.json").read_text()) == {"token_ids": KEPT.tolist()}
    embedding = taught.frozen.clone()
    embedding[KEPT] = tensors.pop(ROWS)
    save_file({"model.embed_tokens.weight": embedding, **tensors}, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "layers.safetensors").unlink()
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    token_ids = torch.randint(VOCAB_SIZE, (2, 9), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected, found = model(token_ids).logits[..., KEPT], taught.logits(taught(token_ids))
    # The export rounds every weight to bfloat16.
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)


def test_a_layer_is_adopted_as_it_was_exported() -> None:
    first, second = student(seed=1), student(seed=2)
    exported = huggingface_layers(first)
    adopt_layer(second.layers[0], exported, 0)
    again = huggingface_layers(second)
    assert all(torch.equal(exported[name], again[name]) for name in exported)


def test_learning_raises_the_agreement_and_a_saved_student_is_the_same(tmp_path: Path) -> None:
    document = torch.tensor([4, 8, 2, 6, 10, 14, 12, 16, 20, 18], dtype=torch.int32)
    answers = document[2:]
    others = torch.arange(1, 2 * NUM_CHOICES, 2, dtype=torch.int32)[: NUM_CHOICES - 1]
    log_probabilities = torch.tensor([0.9] + [0.1 / (NUM_CHOICES - 1)] * (NUM_CHOICES - 1)).log().half()
    lessons = Lessons(
        token_ids=document,
        lengths=torch.tensor([10], dtype=torch.int32),
        prompt_lengths=torch.tensor([2], dtype=torch.int32),
        choices=torch.cat([answers[:, None], others.expand(len(answers), -1)], 1),
        log_probabilities=log_probabilities.expand(len(answers), -1),
    )
    learner, out = student(), tmp_path / "student.safetensors"
    ticks = itertools.count()
    training = Training(learner, seconds=120.0, clock=lambda: float(next(ticks)))
    grades = list(training.run(lambda: lessons, lessons, out))
    assert grades[-1].agreement == 1.0
    test = Class(document[None].long(), torch.arange(1, 9), lessons.choices.long(), torch.ones(8, NUM_CHOICES))
    assert agreement(student(), [test]) < 0.5
    kept = restore(out, learner.frozen)
    assert agreement(kept, [test]) == 1.0
    save(kept, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == out.read_bytes()
