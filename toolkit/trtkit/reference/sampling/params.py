"""SamplingParams: how one request turns logits into tokens. Knows ranges, no tensors."""

import math
from dataclasses import dataclass

from trtkit.errors import RequestError

MAX_SEED = 2**64 - 1
# Below this a temperature is greedy: the quotients would leave float32 (vLLM draws the line at the same place).
MIN_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class SamplingParams:
    """The sampling inputs of one request, named and bounded like TensorRT-LLM's.

    The default is greedy. top_k 0 keeps every token, top_p 1 and min_p 0 cut nothing, and the neutral penalties are
    repetition 1, presence 0, frequency 0. `seed` and the position of a token in its sequence fix the random number
    that chooses it (docs/numerics.md).
    """

    temperature: float = 1.0
    top_k: int = 1
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        """The most likely token is taken and no random number is drawn."""
        return self.top_k == 1 or self.temperature < MIN_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """Tokens that occurred already change the logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def check(self) -> None:
        """Raise RequestError REQ-SAMPLING that names every value out of its range."""
        whole = {"top_k": self.top_k, "seed": self.seed}
        finite = {
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        problems = [f"{name} must be an int, got {value!r}" for name, value in whole.items() if type(value) is not int]
        problems += [
            f"{name} must be finite, got {value}" for name, value in finite.items() if not math.isfinite(value)
        ]
        for name, value, allowed, is_allowed in (
            ("temperature", self.temperature, ">= 0", 0 <= self.temperature < math.inf),
            ("top_k", self.top_k, ">= 0", self.top_k >= 0),
            ("top_p", self.top_p, "in (0, 1]", 0 < self.top_p <= 1),
            ("min_p", self.min_p, "in [0, 1]", 0 <= self.min_p <= 1),
            ("repetition_penalty", self.repetition_penalty, "> 0", 0 < self.repetition_penalty < math.inf),
            ("seed", self.seed, f"in [0, {MAX_SEED}]", 0 <= self.seed <= MAX_SEED),
        ):
            if not is_allowed:
                problems.append(f"{name} must be {allowed}, got {value}")
        if problems:
            raise RequestError("; ".join(problems), "send values in these ranges", code="REQ-SAMPLING")
