"""What a layer's rule does to attention, against a plain float64 computation."""

import math

import pytest
import torch
from torch import Tensor
from trtkit.reference.batch import Span
from trtkit.reference.kv_cache.storage import KvStorage
from trtkit.reference.model.attention import Attention, Heads
from trtkit.reference.model.attention_rule import AttentionRule

HEADS, GROUP, DIM = 2, 3, 8


def plainly(queries: Tensor, keys: Tensor, values: Tensor, rule: AttentionRule) -> Tensor:
    """Row i is the token at position len(keys) - len(queries) + i.

    queries [N, H * G, D]; keys, values [T, H, D]; returns [N, H * G * D]
    """
    num_rows, num_keys = len(queries), len(keys)
    position = torch.arange(num_keys - num_rows, num_keys)[:, None]
    key = torch.arange(num_keys)[None]
    scores = torch.einsum("nhgd,thd->hgnt", queries.view(num_rows, HEADS, GROUP, DIM).double(), keys.double())
    scores = scores * rule.scale
    if rule.soft_cap is not None:
        scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
    visible = (key <= position) & (key > position - (rule.window or math.inf))
    probs = torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1)
    return torch.einsum("hgnt,thd->nhgd", probs, values.double()).reshape(num_rows, -1)


@pytest.mark.parametrize(
    "rule",
    [
        AttentionRule(DIM**-0.5),
        AttentionRule(0.7),
        AttentionRule(DIM**-0.5, soft_cap=2.0),
        AttentionRule(DIM**-0.5, window=1),
        AttentionRule(DIM**-0.5, window=40),
        AttentionRule(DIM**-0.5, window=64),
        AttentionRule(DIM**-0.5, window=100),
        AttentionRule(0.5, soft_cap=3.0, window=70),
    ],
    ids=str,
)
@pytest.mark.parametrize("block_size", [8, 32, 64, 128])
def test_a_layer_attends_as_its_rule_says(rule: AttentionRule, block_size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    num_keys = 192
    keys, values = (torch.randn(num_keys, HEADS, DIM, generator=generator) for _ in range(2))
    queries = torch.randn(num_keys, HEADS * GROUP, DIM, generator=generator)
    blocks = shuffled_blocks(num_keys, block_size)
    storage = KvStorage(num_layers=2, num_rows=len(blocks) * block_size, kv_shape=(HEADS, DIM), like=queries)
    rows = torch.tensor([blocks[slot // block_size] * block_size + slot % block_size for slot in range(num_keys)])
    storage.write(1, rows, torch.stack([keys, values], dim=1).view(num_keys, -1))
    attention = Attention(
        Heads(HEADS, GROUP, DIM), [AttentionRule(1.0), rule], storage, max_keys=num_keys, block_size=block_size
    )
    for start, end in ((0, 5), (60, 64), (64, 66), (100, 192), (191, 192), (0, 192)):
        out = torch.zeros(end - start, HEADS * GROUP * DIM)
        got = attention.plan([Span(0, start, end, blocks)], out).run(1, queries[start:end])
        expected = plainly(queries[start:end], keys[:end], values[:end], rule)
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def shuffled_blocks(num_keys: int, block_size: int) -> list[int]:
    """The first half of the blocks are neighbours, the others are not."""
    blocks = list(range(-(-num_keys // block_size)))
    half = len(blocks) // 2
    return [*blocks[:half], *reversed(blocks[half:])]
