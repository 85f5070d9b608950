"""What the next token of a deployment should be distributed like. Knows models, no samples and no server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from trtkit.builds import Build
from trtkit.evaluate.checkpoint.traces import CheckpointTracer
from trtkit.evaluate.oracle.numerics import REPRODUCIBLE, formats_of, oracle_quantization
from trtkit.evaluate.oracle.oracle import Oracle
from trtkit.evaluate.sampling.draws import Probabilities


@dataclass(frozen=True)
class Expected:
    """The model that the probabilities are taken from: its logits of the token after others, [V].

    name: "transformers", which shares nothing with the deployment, or "checkpoint", the converted one.
    """

    name: Literal["transformers", "checkpoint"]
    next_logits: Callable[[Sequence[int]], Tensor]
    temperature: float
    end_ids: Sequence[int]

    def probabilities(self, token_ids: Sequence[int]) -> Probabilities:
        """The probability of each next token; end tokens count as the first of them."""
        logits = self.next_logits(token_ids).double()
        probabilities = dict(enumerate(torch.softmax(logits / self.temperature, dim=0).tolist()))
        for other in self.end_ids[1:]:
            probabilities[self.end_ids[0]] += probabilities.pop(other)
        return probabilities


def expected_of(build: Build, folder: Path, temperature: float, end_ids: Sequence[int]) -> Expected:
    """transformers on the original checkpoint where it can have the deployment's own weights and cache.

    Calibrated scales and coarse caches move the distribution in ways that no other rounding repeats, by more than a few
    hundred samples need to show it. What is asked here is whether samples follow what is stored, so there the converted
    checkpoint says it, executed by the reference engine; what storing costs is for checkpoint parity to say.
    """
    formats = formats_of(build)
    if formats.kv_dtype == "auto" and formats.quantization in ("none", *REPRODUCIBLE):
        oracle = Oracle.load(folder, quantization=oracle_quantization(formats))
        return Expected("transformers", oracle.next_logits, temperature, end_ids)
    tracer = CheckpointTracer.load(build.checkpoint("target"), build.config.limits.max_input_len + 1)
    return Expected("checkpoint", lambda token_ids: tracer.trace(token_ids).logits[-1], temperature, end_ids)
