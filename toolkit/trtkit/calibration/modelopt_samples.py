"""The token ids that a conversion lets nvidia-modelopt calibrate on: those of `trtkit calibrate`, without its pass."""

from pathlib import Path

from trtkit.calibration.texts import read_texts, shipped_texts
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.config.schema import Calibration
from trtkit.errors import MissingToolError


def calibration_ids(checkpoint: Path, given: Calibration) -> tuple[tuple[int, ...], ...]:
    """Samples of a user's file, or of the texts that trtkit ships.

    Raises MissingToolError CONV-PACKAGE without transformers, and what read_texts and make_samples raise.
    """
    try:
        from trtkit.calibration.samples import SampleOptions, hold_out, make_samples
    except ImportError as error:
        raise MissingToolError(
            f"this quantization is done by nvidia-modelopt, and {error.name} is not installed",
            "pip install 'trtkit[quantize]'",
            code="CONV-PACKAGE",
        ) from None
    spec = read_model_spec(checkpoint)
    texts = read_texts(Path(given.prompts)) if given.prompts else shipped_texts()
    options = SampleOptions(given.samples, given.max_len, given.seed).within(spec.max_seq_len)
    samples, _ = hold_out(make_samples(texts, checkpoint, spec.vocab_size, options))
    return tuple(sample.token_ids for sample in samples)
