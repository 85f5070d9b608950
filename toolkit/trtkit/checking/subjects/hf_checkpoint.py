"""HfCheckpoint: what one Hugging Face folder says of itself. Gathers; judges nothing but readability."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from trtkit.checking.raised import finding_of
from trtkit.checking.scales import LAYER_NUMBER, ScaleAudit, audit_scales, read_scales
from trtkit.checkpoints.draft_vocabulary import read_draft_vocabulary
from trtkit.checkpoints.model_spec import ModelSpec, read_model_spec
from trtkit.checkpoints.quantized import QuantizedSource, read_quantized
from trtkit.checkpoints.stop_ids import read_stop_ids
from trtkit.checkpoints.tokenizer import TokenizerSpec, read_tokenizer
from trtkit.checkpoints.weights import Weights, open_weights
from trtkit.conversion.source_check import resolve_names
from trtkit.conversion.weight_maps import WEIGHT_MAPS
from trtkit.errors import CheckpointError
from trtkit.findings import Finding

R = TypeVar("R")
# The spellings that the conversion reads (conversion/source_scales.py): ModelOpt puts the scales below the projections,
# compressed-tensors beside them and once as outputs of the projections, vLLM below attn; AutoFP8 has one for both.
_KV_SCALE = re.compile(
    rf"\blayers\.{LAYER_NUMBER}\.self_attn\."
    r"(?:[kv]_proj\.output_scale|(?:(?:attn|[kv]_proj|qkv_proj)\.)?(?:kv|k|v)_scale)$"
)


@dataclass(frozen=True)
class HfCheckpoint:
    """One folder; each part is None when it could not be read. quantized is None for unquantised weights.

    head_rows: how many logits a draft computes that computes a part of them.
    """

    folder: Path
    spec: ModelSpec | None
    tokenizer: TokenizerSpec | None
    weights: Weights | None
    quantized: QuantizedSource | None
    head_rows: int | None = None

    @property
    def num_layers(self) -> int:
        """Layers of the model, 0 when config.json could not be read."""
        return self.spec.num_layers if self.spec else 0

    @property
    def kv_algorithm(self) -> str | None:
        """How the KV cache is to be quantised, by the checkpoint's own word."""
        return self.quantized.kv_algorithm if self.quantized and self.weights else None

    @cached_property
    def kv_scales(self) -> Mapping[int, tuple[float, ...]]:
        """Scales by layer."""
        return read_scales(self.weights.values() if self.weights else (), _KV_SCALE)

    @cached_property
    def scale_audit(self) -> ScaleAudit:
        """The verdict over the KV scales, of no more layers than there are tensors, whatever config.json announces."""
        return audit_scales(self.kv_scales, min(self.num_layers, len(self.weights or ())))


def read_hf_checkpoint(folder: Path, *, converts: bool) -> tuple[HfCheckpoint, list[Finding]]:
    """The folder's parts, and a finding for each that is missing or damaged.

    converts: the weights must be those that config.json announces, in a form that the converter reads. The LLM API
    reads more forms than that, and then only the files are checked.
    """
    problems: list[Finding] = []

    def attempt(read: Callable[[], R]) -> R | None:
        try:
            return read()
        except CheckpointError as error:
            problems.append(finding_of(error, str(folder)))
            return None

    spec = attempt(lambda: read_model_spec(folder))
    quantized = attempt(lambda: read_quantized(folder)) if spec else None
    vocabulary = None
    if spec is not None:
        attempt(lambda: read_stop_ids(folder))
        vocabulary = attempt(lambda: read_draft_vocabulary(folder, spec.vocab_size))
    tokenizer = attempt(lambda: read_tokenizer(folder))
    weights = attempt(lambda: open_weights(folder))
    if spec is not None and weights is not None and converts:
        attempt(lambda: resolve_names(spec, WEIGHT_MAPS[spec.family], weights))
    head_rows = len(vocabulary) if vocabulary is not None else None
    return HfCheckpoint(folder, spec, tokenizer, weights, quantized, head_rows), problems
