"""Which tensors the TensorRT-LLM checkpoint of a model holds, rank by rank, with their shapes. Knows no number format.

Derived from the model's shape alone, without the converter's weight maps, so that the two can prove each other.
Source of names and cuts: models/llama/convert.py and its siblings for the other families.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.planning.split import Split

POSITIONS = "transformer.position_embedding.weight"
Kind = Literal["linear", "expert", "plain", "router", "head", "embedding"]
_FOUR_NORM_FAMILIES = frozenset({"gemma2", "gemma3"})


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of one rank before quantisation; linear and expert weights are what quantisation applies to.

    is_inner: it belongs to a layer that is neither the first nor the last of the whole model.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind = "plain"
    is_inner: bool = False


def rank_tensors(spec: ModelSpec, split: Split, rank: int) -> Iterator[PlannedTensor]:
    """Every tensor of a rank. Layer numbers are local to the pipeline stage."""
    stage = split.stage(rank)
    if stage == 0:
        yield from _first(spec, split)
    for local, layer in enumerate(split.layers(rank, spec.num_layers)):
        is_inner = 0 < layer < spec.num_layers - 1
        for tensor in _layer(spec, split, layer):
            yield PlannedTensor(f"transformer.layers.{local}.{tensor.name}", tensor.shape, tensor.kind, is_inner)
    if stage == split.pipeline - 1:
        yield from _norm(spec, "transformer.ln_f")
        yield PlannedTensor("lm_head.weight", (_share(spec.vocab_size, split.tensor), spec.hidden_size), "head")


def _first(spec: ModelSpec, split: Split) -> Iterator[PlannedTensor]:
    # Gemma's builder insists on a cut embedding; for the others it is whole on every rank.
    cut = split.tensor if spec.family.startswith("gemma") else 1
    rows = _share(spec.vocab_size, cut)
    yield PlannedTensor("transformer.vocab_embedding.weight", (rows, spec.hidden_size), "embedding")
    if spec.family == "gpt2":
        yield PlannedTensor(POSITIONS, (spec.max_seq_len, spec.hidden_size))


def _layer(spec: ModelSpec, split: Split, layer: int) -> Iterator[PlannedTensor]:
    """The tensors of one layer, named within the layer."""
    norms = ["input_layernorm", "post_layernorm"]
    if spec.family in _FOUR_NORM_FAMILIES:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for name in norms:
        yield from _norm(spec, name)
    yield from _attention(spec, split)
    if spec.moe is not None and spec.moe.is_sparse(layer):
        yield from _experts(spec, split)
    else:
        yield from _mlp(spec, split)


def _attention(spec: ModelSpec, split: Split) -> Iterator[PlannedTensor]:
    q_rows = spec.num_q_heads // split.tensor * spec.head_dim
    qkv_rows = q_rows + 2 * split.kv_heads(spec.num_kv_heads) * spec.head_dim
    yield PlannedTensor("attention.qkv.weight", (qkv_rows, spec.hidden_size), "linear")
    yield PlannedTensor("attention.dense.weight", (spec.hidden_size, q_rows), "linear")
    if spec.attention_bias:
        yield PlannedTensor("attention.qkv.bias", (qkv_rows,))
        if not spec.family.startswith("qwen2"):
            yield PlannedTensor("attention.dense.bias", (spec.hidden_size,))
    if spec.qk_norm:
        yield PlannedTensor("attention.q_layernorm.weight", (spec.head_dim,))
        yield PlannedTensor("attention.k_layernorm.weight", (spec.head_dim,))


def _mlp(spec: ModelSpec, split: Split) -> Iterator[PlannedTensor]:
    inner = spec.intermediate_size // split.tensor
    fused = spec.family == "phi3"
    yield PlannedTensor("mlp.fc.weight", (2 * inner if fused else inner, spec.hidden_size), "linear")
    yield PlannedTensor("mlp.proj.weight", (spec.hidden_size, inner), "linear")
    gated = not fused and spec.family != "gpt2"
    if gated:
        yield PlannedTensor("mlp.gate.weight", (inner, spec.hidden_size), "linear")
    if spec.mlp_bias:
        yield PlannedTensor("mlp.fc.bias", (inner,))
        yield PlannedTensor("mlp.proj.bias", (spec.hidden_size,))
        if gated:
            yield PlannedTensor("mlp.gate.bias", (inner,))


def _experts(spec: ModelSpec, split: Split) -> Iterator[PlannedTensor]:
    moe = spec.moe
    assert moe is not None, "only layers with experts come here"
    held, inner = moe.num_experts // split.expert, moe.intermediate_size // split.expert_cut
    yield PlannedTensor("mlp.fc.weight", (held, 2 * inner, spec.hidden_size), "expert")
    yield PlannedTensor("mlp.proj.weight", (held, spec.hidden_size, inner), "expert")
    yield PlannedTensor("mlp.router.weight", (moe.num_experts, spec.hidden_size), "router")
    if moe.shared_intermediate_size:
        shared = moe.shared_intermediate_size // split.tensor
        yield PlannedTensor("mlp.shared_expert.fc.weight", (2 * shared, spec.hidden_size), "linear")
        yield PlannedTensor("mlp.shared_expert.proj.weight", (spec.hidden_size, shared), "linear")
        yield PlannedTensor("mlp.shared_expert_gate.weight", (1, spec.hidden_size))


def _norm(spec: ModelSpec, name: str) -> Iterator[PlannedTensor]:
    yield PlannedTensor(f"{name}.weight", (spec.hidden_size,))
    if spec.family == "gpt2":
        yield PlannedTensor(f"{name}.bias", (spec.hidden_size,))


def _share(total: int, ranks: int) -> int:
    """Rows of a rank when the last ranks are padded."""
    return -(-total // ranks)
