"""Runs calibration passes over tiny checkpoints for tests, and loads the same checkpoint whole. Judges nothing."""

import math
from collections.abc import Sequence
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
from trtkit.reference.engine import Engine
from trtkit.reference.request import GenerationRequest, Returns


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


def engines_perplexity(engine: Engine, samples: Sequence[Sample]) -> float:
    """The engine's, by the logits of the samples as prompts."""
    losses = []
    for sample in samples:
        request = GenerationRequest(sample.name, sample.token_ids, 1, returns=Returns(context_logits=True))
        logits = [output.context_logits for output in engine.generate(request) if output.context_logits is not None]
        scores = torch.from_numpy(np.concatenate(logits))[: len(sample.token_ids) - 1]
        wanted = torch.tensor(sample.token_ids[1:])
        losses += torch.nn.functional.cross_entropy(scores, wanted, reduction="none").tolist()
    return math.exp(sum(losses) / len(losses))


def whole_model(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' own model with every weight loaded."""
    auto: Any = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=dtype).eval()
