"""When an answer came, began, and had its first token and its last: TensorRT-LLM's four outputs. Knows a clock."""

from dataclasses import dataclass

import numpy as np

from trtkit.serving.tensor import Array


@dataclass
class AnswerTimes:
    """Nanoseconds since the epoch; 0 is not yet."""

    arrival_ns: int
    first_scheduled_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0

    def note_tokens(self, now_ns: int) -> None:
        """Tokens are there."""
        self.first_token_ns = self.first_token_ns or now_ns
        self.last_token_ns = now_ns

    def note_scheduled(self, now_ns: int) -> None:
        """Work on the answer begins; later calls change nothing."""
        self.first_scheduled_ns = self.first_scheduled_ns or now_ns

    def outputs(self) -> dict[str, Array]:
        """The outputs of a model."""
        values = {
            "arrival_time_ns": self.arrival_ns,
            "first_scheduled_time_ns": self.first_scheduled_ns,
            "first_token_time_ns": self.first_token_ns,
            "last_token_time_ns": self.last_token_ns,
        }
        return {name: np.array([[value]]) for name, value in values.items()}
