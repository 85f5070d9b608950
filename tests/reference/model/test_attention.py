"""What a layer's rule does to attention, against a plain float64 computation."""

import math

import pytest
import torch
from torch import Tensor
from trtkit.reference.batch import TILE, Tile
from trtkit.reference.model.attention import Attention
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
def test_a_layer_attends_as_its_rule_says(rule: AttentionRule) -> None:
    generator = torch.Generator().manual_seed(0)
    num_keys = 3 * TILE
    keys, values = (torch.randn(num_keys, HEADS, DIM, generator=generator) for _ in range(2))
    queries = torch.randn(num_keys, HEADS * GROUP, DIM, generator=generator)
    attention = Attention(
        num_kv_heads=HEADS,
        group_size=GROUP,
        head_dim=DIM,
        capacity=4 * TILE,
        rules=[AttentionRule(1.0), rule],
        like=queries,
    )
    for start, end in ((0, 5), (60, 64), (64, 66), (150, 192), (191, 192)):
        tile = Tile(0, end - start, 0, -(-end // TILE) * TILE, start)
        plan = attention.plan([tile], torch.zeros(end - start, HEADS * GROUP * DIM))
        cache = [tensor.transpose(0, 1)[None] for tensor in (keys, values)]
        got = plan.run(1, queries[start:end], *cache)
        expected = plainly(queries[start:end], keys[:end], values[:end], rule)
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
