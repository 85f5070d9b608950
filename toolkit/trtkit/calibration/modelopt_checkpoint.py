"""A checkpoint that nvidia-modelopt quantised beside a calibration, on the same samples. Knows stages, not modelopt."""

from pathlib import Path

from trtkit import __version__
from trtkit.artifacts import is_complete, key_of, stage_output
from trtkit.calibration.samples import Sample
from trtkit.checkpoints.digest import checkpoint_digest
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.checkpoints.weights import open_weights
from trtkit.conversion.modelopt import export_with_modelopt
from trtkit.conversion.modelopt_limits import ModeloptOptions, refuse_impossible, refuse_missing
from trtkit.conversion.source_scales import FP8
from trtkit.errors import CheckpointError
from trtkit.progress import OnProgress, silent


def quantize_with_modelopt(
    checkpoint: Path, samples: list[Sample], out: Path, options: ModeloptOptions, on_progress: OnProgress = silent
) -> bool:
    """Quantise into `out`, whole or not at all; false when it was there already for the same inputs.

    Raises MissingToolError CONV-PACKAGE without modelopt, CheckpointError CONV-MODELOPT for what it cannot do.
    """
    refuse_unquantizable(checkpoint, options)
    ids = [sample.token_ids for sample in samples]
    inputs = {"trtkit": __version__, "modelopt": True, "checkpoint": checkpoint_digest(checkpoint, on_progress)}
    key = key_of({**inputs, "options": repr(options), "samples": ids})
    if is_complete(out, key):
        return False
    with stage_output(out, stage="modelopt", key=key) as scratch:
        export_with_modelopt(checkpoint, ids, scratch, options, on_progress)
    return True


def refuse_unquantizable(checkpoint: Path, options: ModeloptOptions) -> None:
    """Raise MissingToolError CONV-PACKAGE without modelopt, CheckpointError CONV-MODELOPT for what it cannot do."""
    refuse_missing()
    refuse_impossible(read_model_spec(checkpoint), options, str(checkpoint))
    if any(tensor.dtype == FP8 for tensor in open_weights(checkpoint).values()):
        raise CheckpointError(
            "its weights are stored in FP8, and nvidia-modelopt would take them without their scales",
            "give the unquantised checkpoint, or leave out --modelopt",
            code="CONV-MODELOPT",
            where=str(checkpoint),
        )
