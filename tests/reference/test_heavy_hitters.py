"""Heavy hitters: who stays, against the rule written out with lists; the same in any company, in constant memory."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from lone_sequence import lone_sequence
from tiny import tiny_checkpoint as hugging_face_checkpoint
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import InputError
from trtkit.reference.engine import Engine
from trtkit.reference.kv_cache.block_pool import NO_BLOCK
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.request import GenerationRequest, Returns

MakeEngine = Callable[..., Engine]
MakePrompt = Callable[..., tuple[int, ...]]
HEAVY = CacheOptions(window_tokens=12, sink_tokens=3, heavy_tokens=9, block_size=8, reuse="off")


@dataclass
class Head:
    """What one KV head of one layer holds: tokens that outlived the window, and what everybody got."""

    heavy: list[int] = field(default_factory=list)
    got: dict[int, float] = field(default_factory=dict)

    def visible(self, position: int, cache: CacheOptions) -> list[int]:
        first = max(0, position + 1 - (cache.window_tokens or 0))
        return [*range(min(cache.sink_tokens, first)), *sorted(self.heavy), *range(first, position + 1)]

    def note(self, tokens: list[int], shares: Tensor, position: int, cache: CacheOptions) -> None:
        """shares [query heads, tokens]"""
        for token, share in zip(tokens, shares.sum(0).tolist(), strict=True):
            self.got[token] = self.got.get(token, 0.0) + share
        leaving = position + 1 - (cache.window_tokens or 0)
        if leaving >= cache.sink_tokens:
            self.heavy.append(leaving)
        if len(self.heavy) > cache.heavy_tokens:
            self.heavy.remove(min(self.heavy, key=lambda token: self.got[token]))


def streamed(model: PreTrainedModel, token_ids: list[int], cache: CacheOptions) -> tuple[Tensor, list[list[Head]]]:
    """The definition, token by token: unrotated keys of what a head still holds are turned to their places.

    returns  [T, V] logits, and what every layer's heads hold at the end
    """
    config, decoder = model.config, model.model
    num_heads, num_kv = config.num_attention_heads, config.num_key_value_heads
    size, group = config.hidden_size // num_heads, num_heads // num_kv
    books = [[Head() for _ in range(num_kv)] for _ in decoder.layers]
    stored: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in decoder.layers]
    rows = []
    for position, token_id in enumerate(token_ids):
        hidden = decoder.embed_tokens(torch.tensor([[token_id]]))
        for layer, heads, (keys, values) in zip(decoder.layers, books, stored, strict=True):
            attention, normed = layer.self_attn, layer.input_layernorm(hidden)
            queries = attention.q_proj(normed).view(num_kv, group, size)
            keys.append(attention.k_proj(normed).view(num_kv, size))
            values.append(attention.v_proj(normed).view(num_kv, size))
            mixed = []
            for number, head in enumerate(heads):
                tokens = head.visible(position, cache)
                cos, sin = decoder.rotary_emb(torch.zeros(1), torch.arange(len(tokens))[None])
                key = torch.stack([keys[token][number] for token in tokens])[None, None]
                query = queries[number][None, :, None]
                query, _ = apply_rotary_pos_emb(query, query, cos[:, -1:], sin[:, -1:])
                _, key = apply_rotary_pos_emb(key, key, cos, sin)
                shares = (query[0, :, 0] @ key[0, 0].T * size**-0.5).softmax(-1)
                mixed.append(shares @ torch.stack([values[token][number] for token in tokens]))
                head.note(tokens, shares, position, cache)
            hidden = hidden + attention.o_proj(torch.cat(mixed).reshape(1, 1, -1))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        rows.append(model.lm_head(decoder.norm(hidden))[0, 0])
    return torch.stack(rows), books


@pytest.mark.parametrize(
    "cache",
    [
        HEAVY,
        replace(HEAVY, sink_tokens=0),
        replace(HEAVY, heavy_tokens=1, window_tokens=1),
        replace(HEAVY, heavy_tokens=30, window_tokens=17, sink_tokens=4, block_size=16),
        replace(HEAVY, heavy_tokens=20, window_tokens=20, block_size=64),
    ],
    ids=lambda c: f"{c.sink_tokens} + {c.heavy_tokens} + {c.window_tokens} in blocks of {c.block_size}",
)
def test_what_got_most_attention_stays_at_its_place_inside_the_cache(
    cache: CacheOptions, tiny_checkpoint: Path, tiny_llama: PreTrainedModel, make_prompt: MakePrompt
) -> None:
    token_ids = list(make_prompt(160))
    with torch.inference_mode():
        expected, books = streamed(tiny_llama, token_ids, cache)
    assert books[0][0].heavy != books[0][1].heavy, "heads choose for themselves"
    sequence = lone_sequence(tiny_checkpoint, cache=cache)
    got = torch.cat([sequence.feed(token_ids[start : start + 40]) for start in range(0, 160, 40)])
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


def test_room_for_all_tokens_is_no_bound(tiny_checkpoint: Path, make_prompt: MakePrompt) -> None:
    token_ids = list(make_prompt(60))
    plain = lone_sequence(tiny_checkpoint).feed(token_ids)
    roomy = lone_sequence(tiny_checkpoint, cache=replace(HEAVY, heavy_tokens=30, window_tokens=30)).feed(token_ids)
    torch.testing.assert_close(roomy, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float", "fp8", "int4"])
def test_rows_have_the_same_bits_in_passes_of_any_size(
    dtype: str, tiny_checkpoint: Path, make_prompt: MakePrompt
) -> None:
    token_ids = list(make_prompt(150))
    cache = replace(HEAVY, dtype=dtype)  # type: ignore[arg-type]

    def in_passes_of(size: int) -> Tensor:
        sequence = lone_sequence(tiny_checkpoint, cache=cache)
        return torch.cat([sequence.feed(token_ids[start : start + size]) for start in range(0, 150, size)])

    whole = in_passes_of(75)
    assert torch.equal(in_passes_of(2), whole)
    assert torch.equal(in_passes_of(7), whole)
    assert torch.equal(in_passes_of(50), whole)


def test_who_had_the_rows_before_does_not_matter(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    request = GenerationRequest("b", make_prompt(90, seed=1), 8, returns=Returns(generation_logits=True))
    used, fresh = (make_engine(max_batch_size=1, cache=HEAVY) for _ in range(2))
    for seed in (2, 3):
        used.generate(GenerationRequest("a", make_prompt(90, seed=seed), 8))
    for got, expected in zip(used.generate(request), fresh.generate(request), strict=True):
        assert (got.generation_logits == expected.generation_logits).all()


def test_an_answer_goes_on_beyond_max_seq_len_in_constant_memory(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    engine = make_engine(max_batch_size=1, max_seq_len=64, cache=HEAVY)
    engine.submit(GenerationRequest("a", make_prompt(30), 500))
    num_bytes, most = engine.cache_bytes, 0
    while engine.has_work:
        engine.step()
        engine.check()
        most = max(most, engine.num_blocks - engine.num_free_blocks)
    assert most <= 5, "two blocks of sinks and heavy hitters, and a window of 12 over blocks of 8"
    assert engine.cache_bytes == num_bytes


def test_a_far_position_is_rotated_as_a_near_one(tiny_checkpoint: Path, make_prompt: MakePrompt) -> None:
    """The same text with a table of rotations that ends early."""
    token_ids = list(make_prompt(200))
    near = lone_sequence(tiny_checkpoint, cache=HEAVY)
    far = lone_sequence(tiny_checkpoint, cache=HEAVY, max_seq_len=48)
    for start in range(0, 200, 40):
        part = token_ids[start : start + 40]
        torch.testing.assert_close(far.feed(part), near.feed(part), rtol=1e-3, atol=1e-3)


def test_no_more_blocks_are_kept_than_are_read(tiny_checkpoint: Path, make_prompt: MakePrompt) -> None:
    sequence = lone_sequence(tiny_checkpoint, cache=HEAVY)
    for start in range(0, 160, 10):
        sequence.feed(list(make_prompt(160))[start : start + 10])
    held = [index for index, block in enumerate(sequence.blocks) if block != NO_BLOCK]
    assert held == [0, 1, 18, 19], "12 fixed slots, and token 160 reads 149 to 160 beside them"


def test_what_is_noted_about_the_tokens_is_counted(make_engine: MakeEngine) -> None:
    plain = replace(HEAVY, heavy_tokens=0, num_blocks=10)
    noted = make_engine(cache=replace(HEAVY, num_blocks=10)).cache_bytes - make_engine(cache=plain).cache_bytes
    assert noted == 3 * 80 * 2 * 8, "3 layers, 80 rows, 2 heads: a position and a sum"


def test_what_depends_on_the_whole_text_is_not_shared(make_engine: MakeEngine) -> None:
    with pytest.raises(InputError, match='heavy_tokens needs reuse="off"') as caught:
        make_engine(cache=replace(HEAVY, reuse="tokens"))
    assert caught.value.code == "KV-OPTIONS"


@pytest.mark.parametrize(
    ("family", "why"),
    [("gpt2", "positions that are learned"), ("gemma2", "windows of its own"), ("mistral", "windows of its own")],
)
def test_models_without_places_for_them_are_refused(family: str, why: str, tmp_path: Path) -> None:
    source = hugging_face_checkpoint(tmp_path / "source", family)
    convert_to(source, tmp_path / "out", ConversionOptions(dtype="float32"))
    with pytest.raises(InputError, match=why) as caught:
        Engine.load(tmp_path / "out", max_batch_size=1, max_seq_len=32, cache=HEAVY)
    assert caught.value.code == "KV-WINDOW"
