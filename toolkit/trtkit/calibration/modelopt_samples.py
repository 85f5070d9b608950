"""The token ids that a conversion lets nvidia-modelopt calibrate on: those of `trtkit calibrate`, without its pass."""

from pathlib import Path

from trtkit.calibration.samples import SampleOptions, hold_out, make_samples
from trtkit.calibration.texts import read_texts, shipped_texts
from trtkit.checkpoints.model_spec import read_model_spec


def calibration_ids(
    checkpoint: Path, texts: Path | None = None, options: SampleOptions | None = None
) -> tuple[tuple[int, ...], ...]:
    """Samples of a user's file, or of the texts that trtkit ships. Raises what read_texts and make_samples raise."""
    vocab_size = read_model_spec(checkpoint).vocab_size
    given = shipped_texts() if texts is None else read_texts(texts)
    samples, _ = hold_out(make_samples(given, checkpoint, vocab_size, options or SampleOptions()))
    return tuple(sample.token_ids for sample in samples)
