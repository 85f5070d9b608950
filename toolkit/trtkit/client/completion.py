"""A whole answer, collected from its chunks and timed. Knows chunks, no transport."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trtkit.client.connect import RunningAnswer
from trtkit.client.ending import broken_off
from trtkit.client.request import Chunk, Figures


@dataclass(frozen=True)
class Completion:
    """ttft_ms is from sending to the first tokens; tpot_ms per token after those, None where none followed."""

    text: str
    token_ids: tuple[int, ...]
    figures: Figures
    ttft_ms: float
    tpot_ms: float | None
    total_ms: float

    def as_dict(self) -> dict[str, Any]:
        """The document of `trtkit generate --json`."""
        record = asdict(self)
        return {"schema": "trtkit.generate/1", **record, "token_ids": list(self.token_ids)}


def collect(answer: RunningAnswer, on_text: Callable[[str], object]) -> Completion:
    """Read an answer to its end, passing on each piece of text as it comes.

    Raises what the answer raises, and ServerError when it ends without its last chunk.
    """
    chunks: list[Chunk] = []
    for chunk in answer:
        chunks.append(chunk)
        on_text(chunk.text)
    return completion_of(chunks, answer.sent_ns)


def completion_of(chunks: Sequence[Chunk], sent_ns: int) -> Completion:
    """The chunks of one answer as a whole. Raises ServerError when the last one is missing."""
    if not chunks or chunks[-1].figures is None:
        raise broken_off()
    with_tokens = [chunk for chunk in chunks if chunk.token_ids] or chunks[-1:]
    first, last = with_tokens[0], with_tokens[-1]
    token_ids = tuple(token for chunk in chunks for token in chunk.token_ids)
    num_later = len(token_ids) - len(first.token_ids)
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        token_ids=token_ids,
        figures=chunks[-1].figures,
        ttft_ms=(first.received_ns - sent_ns) / 1e6,
        tpot_ms=(last.received_ns - first.received_ns) / 1e6 / num_later if num_later else None,
        total_ms=(chunks[-1].received_ns - sent_ns) / 1e6,
    )
