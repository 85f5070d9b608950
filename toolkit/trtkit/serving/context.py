"""The tokens that the models are shown: all of them, or sinks and a rolling window. Pure; knows no model."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RollingWindow:
    """Attention sinks kept by the orchestrator (StreamingLLM, Xiao et al. 2023: positions count inside the cache).

    At most sink_tokens + window_tokens are shown. When more room is needed, the evict_tokens oldest ones after the
    sinks are dropped in one piece, so that prefix reuse works between evictions and a prefill of what is kept is paid
    once per evict_tokens.
    """

    sink_tokens: int
    window_tokens: int
    evict_tokens: int

    @property
    def capacity_tokens(self) -> int:
        """Most tokens shown to a model, drafts and new tokens included."""
        return self.sink_tokens + self.window_tokens


class Context:
    """Prompt and answer as the next call shows them."""

    def __init__(self, prompt_ids: Sequence[int], rolling: RollingWindow | None = None) -> None:
        self._token_ids = list(prompt_ids)
        self._rolling = rolling
        self.num_evicted_tokens = 0

    def append(self, token_ids: Sequence[int]) -> None:
        """Take up confirmed tokens."""
        self._token_ids.extend(token_ids)

    def room_tokens(self, wanted: int) -> int:
        """How many of `wanted` new tokens fit, after evicting until at least one does."""
        if self._rolling is None:
            return wanted
        self._evict_for(1)
        return min(wanted, self._rolling.capacity_tokens - len(self._token_ids))

    def make_room(self, count: int) -> tuple[int, ...]:
        """The tokens to show to a model that adds up to `count`."""
        if self._rolling is not None:
            self._evict_for(count)
        return tuple(self._token_ids)

    def _evict_for(self, count: int) -> None:
        assert self._rolling is not None
        sinks = self._rolling.sink_tokens
        while len(self._token_ids) + count > self._rolling.capacity_tokens and len(self._token_ids) > sinks:
            evicted = min(self._rolling.evict_tokens, len(self._token_ids) - sinks)
            del self._token_ids[sinks : sinks + evicted]
            self.num_evicted_tokens += evicted
