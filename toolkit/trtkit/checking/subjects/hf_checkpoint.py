"""HfCheckpoint: what one Hugging Face folder says of itself. Gathers; judges nothing but readability."""

from dataclasses import dataclass
from pathlib import Path

from trtkit.checking.raised import finding_of
from trtkit.checkpoints.model_spec import ModelSpec, read_model_spec
from trtkit.checkpoints.stop_ids import read_stop_ids
from trtkit.checkpoints.tokenizer import TokenizerSpec, read_tokenizer
from trtkit.checkpoints.weights import Weights, open_weights
from trtkit.conversion.source_check import resolve_names
from trtkit.conversion.weight_maps import WEIGHT_MAPS
from trtkit.errors import CheckpointError
from trtkit.findings import Finding


@dataclass(frozen=True)
class HfCheckpoint:
    """One folder; each part is None when it could not be read."""

    folder: Path
    spec: ModelSpec | None
    tokenizer: TokenizerSpec | None
    weights: Weights | None


def read_hf_checkpoint(folder: Path, *, convertible: bool = True) -> tuple[HfCheckpoint, list[Finding]]:
    """The folder's parts, and a finding for each that is missing or damaged.

    convertible: the weights must be those that config.json announces, in a dtype the converter reads; the LLM API
    also takes folders whose weights are quantised already.
    """
    problems: list[Finding] = []
    spec, tokenizer, weights = None, None, None
    try:
        spec = read_model_spec(folder)
    except CheckpointError as error:
        problems.append(finding_of(error, str(folder)))
    try:
        tokenizer = read_tokenizer(folder)
    except CheckpointError as error:
        problems.append(finding_of(error, str(folder)))
    try:
        read_stop_ids(folder)
    except CheckpointError as error:
        problems.append(finding_of(error, str(folder)))
    try:
        weights = open_weights(folder)
        if convertible and spec is not None:
            resolve_names(spec, WEIGHT_MAPS[spec.family], weights)
    except CheckpointError as error:
        problems.append(finding_of(error, str(folder)))
    return HfCheckpoint(folder, spec, tokenizer, weights), problems
