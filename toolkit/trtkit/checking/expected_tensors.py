"""Which tensors a rank of a TensorRT-LLM checkpoint must hold by its own config.json, and their shapes. Pure."""

from collections.abc import Mapping

from trtkit.checking.subjects.trtllm_config import TrtllmConfig
from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.planning.tensors import rank_tensors

Shape = tuple[int, ...]


def expected_tensors(config: TrtllmConfig, rank: int) -> dict[str, Shape]:
    """Name -> shape for a rank; empty for an architecture that trtkit does not convert, and for a rank too many."""
    if config.spec is None or rank >= config.split.num_ranks:
        return {}
    shapes = {tensor.name: tensor.shape for tensor in rank_tensors(config.spec, config.split, rank)}
    return shapes | _cut_embedding(config, config.spec, shapes)


def _cut_embedding(config: TrtllmConfig, spec: ModelSpec, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The embedding's shape when config.json says that it is cut, by vocabulary (0) or by hidden size (1)."""
    name, ranks = "transformer.vocab_embedding.weight", config.split.tensor
    if name not in shapes or config.embedding_cut is None:
        return {}
    if config.embedding_cut == 1:
        return {name: (spec.vocab_size, spec.hidden_size // ranks)}
    return {name: (-(-spec.vocab_size // ranks), spec.hidden_size)}
