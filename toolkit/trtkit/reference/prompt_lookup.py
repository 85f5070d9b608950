"""Drafts without a draft model: what followed the last tokens when they occurred before. Pure; knows ids only.

Prompt lookup decoding (Saxena 2023); TensorRT-LLM calls it n-gram speculation. It pays where an answer repeats its
prompt: summaries, edits, questions about a text.
"""

from collections.abc import Sequence

from trtkit.reference.proposal import Proposal
from trtkit.reference.request import GenerationRequest


class NgramIndex:
    """Where every n-gram of a growing sequence ended last, for n from min_ngram to max_ngram."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def continuation(self, token_ids: Sequence[int], limit: int) -> tuple[int, ...]:
        """What followed the longest n-gram at the end of the sequence, at its latest earlier occurrence.

        The sequence must begin with the one of the call before. A continuation that reaches the end of the sequence
        goes on with itself, as a repetition does.
        """
        for end in range(self._num_indexed + 1, len(token_ids)):  # the last token's n-grams are what is looked up
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(token_ids[end - size : end])] = end
        self._num_indexed = max(self._num_indexed, len(token_ids) - 1)
        for size in self._sizes:
            found = self._ends.get(tuple(token_ids[-size:])) if size <= len(token_ids) else None
            if found is not None:
                period = len(token_ids) - found
                return tuple(token_ids[found + i % period] for i in range(limit))
        return ()


class PromptLookup:
    """A Proposer that looks up n-grams of prompt and answer.

    It keeps one index per request id; an id that comes back with another sequence gets a new one.
    """

    def __init__(self, *, min_ngram: int = 2, max_ngram: int = 4) -> None:
        self._sizes = (min_ngram, max_ngram)
        self._indexes: dict[str, tuple[tuple[int, ...], NgramIndex]] = {}

    def propose(self, wanted: Sequence[tuple[GenerationRequest, int]]) -> list[Proposal]:
        """Nothing where the end of a sequence occurs for the first time."""
        return [Proposal(self._index(request).continuation(request.prompt_ids, limit)) for request, limit in wanted]

    def _index(self, request: GenerationRequest) -> NgramIndex:
        """The request's index, or a new one where the id now names another sequence."""
        seen, index = self._indexes.get(request.request_id, ((), NgramIndex(*self._sizes)))
        if request.prompt_ids[: len(seen)] != seen:
            index = NgramIndex(*self._sizes)
        self._indexes[request.request_id] = (request.prompt_ids, index)
        return index
