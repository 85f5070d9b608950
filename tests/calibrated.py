"""Runs calibration passes over tiny checkpoints for tests, and loads the same checkpoint whole. Judges nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tiny import VOCAB_SIZE
from trtkit.calibration.collect import PassOptions, collect
from trtkit.calibration.pass_files import read_records
from trtkit.calibration.records import LayerRecord
from trtkit.calibration.samples import Sample
from trtkit.progress import OnProgress, silent


def random_samples(lengths: dict[str, int], seed: int = 7) -> list[Sample]:
    """Samples of random token ids."""
    random = np.random.RandomState(seed)
    return [Sample(name, tuple(random.randint(3, VOCAB_SIZE, size).tolist())) for name, size in lengths.items()]


SAMPLES = random_samples({"first": 40, "second": 24})


def run_pass(
    folder: Path,
    out: Path,
    *,
    samples: list[Sample] | None = None,
    dtype: str = "float32",
    on_progress: OnProgress = silent,
) -> list[LayerRecord]:
    """The records of a pass; `out` is made when it is not there."""
    out.mkdir(exist_ok=True)
    collect(folder, samples or SAMPLES, out, PassOptions(dtype), on_progress=on_progress)
    return list(read_records(out))


def whole_model(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' own model with every weight loaded."""
    auto: Any = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=dtype).eval()
