"""Windows and sinks: what a token sees, the same in any company, in constant memory, without end."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lone_sequence import lone_sequence
from row_invariance import needs_measured_processor
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
from trtkit.reference.request import GenerationRequest

MakeEngine = Callable[..., Engine]
MakePrompt = Callable[..., tuple[int, ...]]
SINKS = CacheOptions(window_tokens=20, sink_tokens=3, block_size=8, reuse="off")


def seen(position: int, cache: CacheOptions) -> list[int]:
    """What the token at `position` reads, oldest first."""
    window = cache.window_tokens or position + 1
    first = max(0, position - window + 1)
    return [*range(min(cache.sink_tokens, first)), *range(first, position + 1)]


def streamed_logits(model: PreTrainedModel, token_ids: list[int], cache: CacheOptions) -> Tensor:
    """The definition, token by token: unrotated keys of what is seen are turned to their places inside the cache.

    returns  [T, V]
    """
    config, decoder = model.config, model.model
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    size = config.hidden_size // heads
    held: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in decoder.layers]
    rows = []
    for position, token_id in enumerate(token_ids):
        visible = seen(position, cache)
        places = torch.arange(len(visible))[None]
        cos, sin = decoder.rotary_emb(torch.zeros(1), places)
        hidden = decoder.embed_tokens(torch.tensor([[token_id]]))
        for layer, (keys, values) in zip(decoder.layers, held, strict=True):
            attention, normed = layer.self_attn, layer.input_layernorm(hidden)
            query = attention.q_proj(normed).view(1, 1, heads, size).transpose(1, 2)
            keys.append(attention.k_proj(normed).view(1, 1, kv_heads, size).transpose(1, 2))
            values.append(attention.v_proj(normed).view(1, 1, kv_heads, size).transpose(1, 2))
            key = torch.cat([keys[index] for index in visible], 2)
            value = torch.cat([values[index] for index in visible], 2).repeat_interleave(heads // kv_heads, 1)
            _, key = apply_rotary_pos_emb(key, key, cos, sin)
            query, _ = apply_rotary_pos_emb(query, query, cos[:, -1:], sin[:, -1:])
            scores = query @ key.repeat_interleave(heads // kv_heads, 1).transpose(2, 3) * size**-0.5
            mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(1, 1, -1)
            hidden = hidden + attention.o_proj(mixed)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        rows.append(model.lm_head(decoder.norm(hidden))[0, 0])
    return torch.stack(rows)


@pytest.mark.parametrize(
    "cache",
    [
        SINKS,
        replace(SINKS, sink_tokens=0),
        replace(SINKS, sink_tokens=1, window_tokens=1),
        replace(SINKS, sink_tokens=10, window_tokens=40, block_size=16),
        replace(SINKS, sink_tokens=4, window_tokens=64, block_size=64),
    ],
    ids=lambda cache: f"{cache.sink_tokens} + {cache.window_tokens} in blocks of {cache.block_size}",
)
def test_tokens_see_sinks_and_window_at_their_places_inside_the_cache(
    cache: CacheOptions, tiny_checkpoint: Path, tiny_llama: PreTrainedModel, make_prompt: MakePrompt
) -> None:
    token_ids = list(make_prompt(160))
    with torch.inference_mode():
        expected = streamed_logits(tiny_llama, token_ids, cache)
    sequence = lone_sequence(tiny_checkpoint, cache=cache)
    got = torch.cat([sequence.feed(token_ids[start : start + 40]) for start in range(0, 160, 40)])
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("cache", [SINKS, replace(SINKS, block_size=64)], ids=["small blocks", "large blocks"])
def test_rows_have_the_same_bits_in_passes_of_any_size(
    cache: CacheOptions, tiny_checkpoint: Path, make_prompt: MakePrompt
) -> None:
    needs_measured_processor(torch.float32)
    token_ids = list(make_prompt(150))

    def in_passes_of(size: int) -> Tensor:
        sequence = lone_sequence(tiny_checkpoint, cache=cache)
        return torch.cat([sequence.feed(token_ids[start : start + size]) for start in range(0, 150, size)])

    whole = in_passes_of(75)
    assert torch.equal(in_passes_of(1), whole)
    assert torch.equal(in_passes_of(7), whole)


@pytest.mark.parametrize("sink_tokens", [0, 3])
def test_an_answer_goes_on_beyond_max_seq_len_in_constant_memory(
    sink_tokens: int, make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    engine = make_engine(max_batch_size=1, max_seq_len=64, cache=replace(SINKS, sink_tokens=sink_tokens))
    engine.submit(GenerationRequest("a", make_prompt(30), 700))
    num_bytes, most = engine.cache_bytes, 0
    while engine.has_work:
        engine.step()
        engine.check()
        most = max(most, engine.num_blocks - engine.num_free_blocks)
    assert most <= 5, "the sinks, and a window of 20 over blocks of 8"
    assert engine.cache_bytes == num_bytes


def test_a_far_position_is_rotated_as_a_near_one(tiny_checkpoint: Path, make_prompt: MakePrompt) -> None:
    """The same text with a table of rotations that ends early."""
    token_ids = list(make_prompt(200))
    near = lone_sequence(tiny_checkpoint, cache=SINKS)
    far = lone_sequence(tiny_checkpoint, cache=SINKS, max_seq_len=48)
    for start in range(0, 200, 40):
        part = token_ids[start : start + 40]
        torch.testing.assert_close(far.feed(part), near.feed(part), rtol=1e-4, atol=1e-4)


def test_a_prefix_is_reused_under_a_window_too(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    cache = replace(SINKS, reuse="tokens", num_blocks=40)
    prompt = make_prompt(90)
    engine = make_engine(cache=cache)
    cold, warm = (engine.generate(GenerationRequest("a", prompt, 20)) for _ in range(2))
    assert warm[0].num_reused_tokens == 89
    assert [output.token_ids for output in warm] == [output.token_ids for output in cold]


def test_a_window_keeps_no_more_blocks_than_it_reads(tiny_checkpoint: Path, make_prompt: MakePrompt) -> None:
    sequence = lone_sequence(tiny_checkpoint, cache=SINKS)
    for start in range(0, 160, 10):
        sequence.feed(list(make_prompt(160))[start : start + 10])
    held = [index for index, block in enumerate(sequence.blocks) if block != NO_BLOCK]
    assert held == [0, *range(17, 20)], "token 160 reads 0 to 2 and 141 to 160"


def test_learned_positions_have_an_end(tmp_path: Path) -> None:
    source = hugging_face_checkpoint(tmp_path / "source", "gpt2")
    convert_to(source, tmp_path / "out", ConversionOptions(dtype="float32"))
    with pytest.raises(InputError, match="positions that are learned") as caught:
        Engine.load(tmp_path / "out", max_batch_size=1, max_seq_len=32, cache=SINKS)
    assert caught.value.code == "KV-WINDOW"
