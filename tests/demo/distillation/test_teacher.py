"""The batched target computes what transformers computes."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from trtkit.demo.distillation.teacher import Teacher

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture
def model(tmp_path: Path) -> LlamaForCausalLM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(**SIZES, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, rope_theta=500.0)
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    model.save_pretrained(tmp_path)
    return model


def test_prompts_and_single_tokens_get_the_logits_of_transformers(model: LlamaForCausalLM, tmp_path: Path) -> None:
    teacher = Teacher(tmp_path, batch_size=3, capacity=16)
    token_ids = torch.randint(64, (3, 8), generator=torch.Generator().manual_seed(1))
    expected = model(token_ids).logits.float()
    found = [teacher.start(token_ids[:, :5])] + [teacher.read(token_ids[:, i : i + 1]) for i in range(5, 8)]
    # bfloat16 keeps 8 bits; the orders of addition differ through two layers.
    torch.testing.assert_close(torch.stack(found, 1), expected[:, 4:], atol=2**-6, rtol=2**-4)


def test_documents_that_leave_do_not_disturb_the_others(model: LlamaForCausalLM, tmp_path: Path) -> None:
    token_ids = torch.randint(64, (3, 6), generator=torch.Generator().manual_seed(2))
    teacher = Teacher(tmp_path, batch_size=3, capacity=16)
    teacher.start(token_ids[:, :5])
    teacher.keep(torch.tensor([0, 2]))
    found = teacher.read(token_ids[[0, 2], 5:])
    alone = Teacher(tmp_path, batch_size=2, capacity=16)
    alone.start(token_ids[[0, 2], :5])
    torch.testing.assert_close(found, alone.read(token_ids[[0, 2], 5:]), atol=2**-6, rtol=2**-4)
