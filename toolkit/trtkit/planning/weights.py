"""Bytes of weights, per rank and per number format. Knows formats, reads no file."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.planning.split import Split
from trtkit.planning.tensors import POSITIONS, PlannedTensor, rank_tensors

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
FLOAT32_BYTES = 4
AWQ_GROUP = 128
# modelopt pads the vocabulary to a multiple of this for AWQ.
AWQ_VOCABULARY = 64
NVFP4_GROUP = 16
# What nvidia-modelopt quantises and exports; the rest trtkit writes itself.
BY_MODELOPT = frozenset({"int4_awq", "w4a8_awq", "int8_smoothquant", "nvfp4"})
# A layer's cache scale, its reciprocal (for older releases), and those of keys and values, left out where nothing
# measured them; modelopt has no reciprocal.
_KV_SCALES, _MODELOPT_KV_SCALES = 4, 3


@dataclass(frozen=True)
class WeightFormat:
    """How the linear layers are stored: dtype of what is not quantised, format of what is, format of the KV cache."""

    dtype: str
    quantization: str = "none"
    kv_dtype: str = "auto"

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one unquantised weight."""
        return DTYPE_BYTES[self.dtype]


def rank_bytes(spec: ModelSpec, split: Split, weights: WeightFormat, rank: int) -> int:
    """Bytes of tensor data in rank{N}.safetensors.

    Exact for every format: as trtkit writes it, or as nvidia-modelopt 0.47 exports it, which cuts the embedding too.
    """
    by_modelopt = weights.quantization in BY_MODELOPT
    if weights.quantization.endswith("awq"):
        spec = replace(spec, vocab_size=-(-spec.vocab_size // AWQ_VOCABULARY) * AWQ_VOCABULARY)
    total = 0
    for tensor in rank_tensors(spec, split, rank):
        whole = tensor_bytes(tensor, weights)
        cut = by_modelopt and _is_table(spec, tensor)
        total += whole // tensor.shape[0] * -(-tensor.shape[0] // split.tensor) if cut else whole
    scaled_layers = len(split.layers(rank, spec.num_layers)) if weights.kv_dtype in ("fp8", "int8") else 0
    return total + scaled_layers * (_MODELOPT_KV_SCALES if by_modelopt else _KV_SCALES) * FLOAT32_BYTES


def _is_table(spec: ModelSpec, tensor: PlannedTensor) -> bool:
    """Whether it is a table of embeddings that stands whole on every rank of trtkit's own checkpoints."""
    is_whole = tensor.kind == "embedding" and tensor.shape[0] == spec.vocab_size
    return is_whole or tensor.name == POSITIONS


def model_bytes(spec: ModelSpec, weights: WeightFormat) -> int:
    """Bytes of the whole model on one rank."""
    return rank_bytes(spec, Split(), weights, 0)


def stored_bytes(spec: ModelSpec, weights: WeightFormat) -> int:
    """Bytes of a checkpoint in Hugging Face's format: every tensor once, a tied head not at all."""
    head = spec.vocab_size * spec.hidden_size * weights.dtype_bytes
    return model_bytes(spec, weights) - (head if spec.tie_word_embeddings else 0)


def dense_bytes(spec: ModelSpec, weights: WeightFormat, head_rows: int | None = None) -> int:
    """Bytes that every pass reads: all but the embedding table and the experts.

    head_rows: rows of the head that are read, where a draft computes the logits of a part of its vocabulary.
    """
    total = 0
    for tensor in _one_rank(spec):
        if tensor.kind in ("embedding", "expert") or tensor.name == POSITIONS:
            continue
        read = tensor_bytes(tensor, weights)
        total += read // spec.vocab_size * head_rows if tensor.kind == "head" and head_rows is not None else read
    return total


def expert_bytes(spec: ModelSpec, weights: WeightFormat) -> int:
    """Bytes of all experts, of which a pass reads those that its tokens choose."""
    return sum(tensor_bytes(tensor, weights) for tensor in _one_rank(spec) if tensor.kind == "expert")


def decode_flops(spec: ModelSpec) -> int:
    """Multiplications and additions per token in the linear layers and the head."""
    total = 0
    for tensor in _one_rank(spec):
        if tensor.kind in ("linear", "head", "router"):
            total += 2 * math.prod(tensor.shape)
        elif tensor.kind == "expert":
            assert spec.moe is not None, "experts come with a MoeSpec"
            total += 2 * math.prod(tensor.shape) * spec.moe.top_k // spec.moe.num_experts
    return total


def num_parameters(spec: ModelSpec) -> int:
    """Weights of the model, a tied head counted once."""
    total = sum(math.prod(tensor.shape) for tensor in _one_rank(spec))
    return total - (spec.vocab_size * spec.hidden_size if spec.tie_word_embeddings else 0)


def tensor_bytes(tensor: PlannedTensor, weights: WeightFormat) -> int:
    """Bytes of one tensor and of the scales that come with it."""
    elements = math.prod(tensor.shape)
    if tensor.kind == "router":
        return elements * FLOAT32_BYTES
    if not _is_quantized(tensor, weights.quantization):
        return elements * weights.dtype_bytes
    return _quantized_bytes(tensor, weights)


def _is_quantized(tensor: PlannedTensor, quantization: str) -> bool:
    if quantization == "fp8_rowwise":
        # Meta's recipe: the MLPs of all layers but the first and the last.
        return tensor.is_inner and tensor.kind == "linear" and ".mlp." in tensor.name
    return tensor.kind in ("linear", "expert") and quantization != "none"


def _quantized_bytes(tensor: PlannedTensor, weights: WeightFormat) -> int:
    """A linear weight with its scales, as the quantised layers of TensorRT-LLM declare them."""
    elements, columns = math.prod(tensor.shape), tensor.shape[-1]
    rows, experts = elements // columns, tensor.shape[0] if tensor.kind == "expert" else 1
    match weights.quantization:
        case "fp8":
            return elements + (experts + 1) * FLOAT32_BYTES
        case "fp8_rowwise":
            return elements + rows * FLOAT32_BYTES
        case "int8_weight_only":
            return elements + rows * weights.dtype_bytes
        case "int4_weight_only":
            return elements // 2 + rows * weights.dtype_bytes
        case "int4_awq" | "w4a8_awq":
            scalars = 2 if weights.quantization == "w4a8_awq" else 0
            return elements // 2 + (elements // AWQ_GROUP + scalars) * FLOAT32_BYTES + columns * weights.dtype_bytes
        case "int8_smoothquant":
            return elements + (rows + 1) * FLOAT32_BYTES + columns * weights.dtype_bytes
        case "nvfp4":
            return elements // 2 + elements // NVFP4_GROUP + 2 * FLOAT32_BYTES
    raise AssertionError(f"no byte formula for {weights.quantization}")


def _one_rank(spec: ModelSpec) -> Iterator[PlannedTensor]:
    return rank_tensors(spec, Split(), 0)
