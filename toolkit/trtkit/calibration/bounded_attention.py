"""The reference engine's attention inside a transformers layer, over the engine's own bounded caches. Decides nothing:
what a token still sees, and at which position, is the engine's code, for a whole text at once.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.reference.assembly import Kept, make_attention
from trtkit.reference.batch import Span
from trtkit.reference.kv_cache.retention import Retention
from trtkit.reference.kv_cache.storage import KvStorage
from trtkit.reference.model.attention import Heads
from trtkit.reference.model.attention_rule import AttentionRule
from trtkit.reference.model.rotary import pairs_as_neighbours, turned_by

IMPLEMENTATION = "trtkit_bounded"
_CACHE = "trtkit_bounded_cache"
_BLOCK_SIZE = 64


class BoundedCache:
    """What a cache of one layer keeps. rotations [positions, 1, D / 2] complex64 are those of the keys that come."""

    def __init__(self, retention: Retention, rotations: Tensor) -> None:
        self._retention = retention
        self._rotations = rotations

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """One sample, on the CPU: query [1, H * G, T, D], key and value [1, H, T, D], rotated -> [1, T, H * G, D]."""
        rows, turned = (_as_the_engine_has_them(part, self._rotations) for part in (query, key))
        num_tokens, num_kv_heads, head_dim = turned.shape
        blocks = range(-(-num_tokens // _BLOCK_SIZE))
        storage = KvStorage(
            num_layers=1,
            num_rows=len(blocks) * _BLOCK_SIZE,
            kv_shape=(num_kv_heads, head_dim),
            like=turned,
            has_hitters=self._retention.heavy_tokens > 0,
        )
        values = value[0].transpose(0, 1).cpu()
        storage.write(0, torch.arange(num_tokens), torch.cat([turned, values], 1).flatten(1))
        attention = make_attention(
            Heads(num_kv_heads, rows.shape[1] // num_kv_heads, head_dim),
            [AttentionRule(scale, window=self._retention.window_tokens)],
            storage,
            self._rotations,
            Kept(self._retention, _BLOCK_SIZE, max_keys=num_tokens),
        )
        last = attention.last_position
        turn = None if last is None else turned_by(self._rotations, last - torch.arange(num_tokens))
        out = rows.new_zeros(num_tokens, rows.shape[1] * head_dim)
        plan = attention.plan([Span(0, 0, num_tokens, blocks)], out, turn)
        return plan.run(0, rows).view(1, num_tokens, -1, head_dim)


def takes_bounded_caches(spec: ModelSpec) -> bool:
    """The engine serves this model with sinks and a window: it refuses the others (KV-WINDOW)."""
    has_windows = spec.sliding_window is not None and any(spec.layer_is_sliding)
    is_dynamic = spec.rope_scaling is not None and spec.rope_scaling["rope_type"] == "dynamic"
    has_caps = spec.extra.get("attn_logit_softcapping") is not None
    return spec.family != "gpt2" and not (has_windows or is_dynamic or has_caps)


def register() -> None:
    """Make the implementation known to transformers, under IMPLEMENTATION. Harmless when it is."""
    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)


def set_cache(layer: nn.Module, cache: BoundedCache) -> None:
    """Say what the attention of `layer` keeps from now on."""
    for module in layer.modules():
        setattr(module, _CACHE, cache)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What transformers calls; the mask of a whole text is causal, as the engine's."""
    cache: BoundedCache = getattr(module, _CACHE)
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    return cache.attend(query, key, value, scale).to(query.device), None


def _as_the_engine_has_them(heads: Tensor, rotations: Tensor) -> Tensor:
    """[1, H, T, D] of transformers -> [T, H, D]: the two parts of a rotated pair are neighbours."""
    rows = heads[0].transpose(0, 1).cpu()
    rotated_dim = 2 * int((rotations.angle() != 0).any(0).sum())
    return pairs_as_neighbours(rows.reshape(-1), rows.shape[2], rotated_dim).view(rows.shape)
