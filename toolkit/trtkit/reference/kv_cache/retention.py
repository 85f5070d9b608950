"""Retention: which tokens of a sequence are still read. Ints only; knows no blocks in use and no tensors."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """All tokens, or the first sink_tokens, heavy_tokens of those behind them and the last window_tokens.

    window_tokens counts the token that reads. None keeps all.
    """

    window_tokens: int | None = None
    sink_tokens: int = 0
    heavy_tokens: int = 0

    @property
    def is_bounded(self) -> bool:
        """A sequence of any length fits into constant memory."""
        return self.window_tokens is not None

    @property
    def num_fixed(self) -> int:
        """Slots at the beginning of a sequence that are kept: those of sinks and those of heavy hitters."""
        return self.sink_tokens + self.heavy_tokens

    def first_kept(self, num_computed: int) -> int:
        """The first token behind the fixed slots that the token at index num_computed, or a later one, still reads."""
        return 0 if self.window_tokens is None else max(0, num_computed + 1 - self.window_tokens)

    def max_blocks(self, num_tokens: int, num_new: int, block_size: int) -> int:
        """Most blocks that a sequence of num_tokens holds at any time, when up to num_new are computed at once.

        A run of n tokens touches at most (n - 2) // block_size + 2 blocks, wherever it begins.
        """
        whole = -(-num_tokens // block_size)
        if self.window_tokens is None:
            return whole
        run = self.window_tokens + num_new - 1
        touched = 1 if run < 2 else (run - 2) // block_size + 2
        return min(whole, -(-self.num_fixed // block_size) + touched)


KEEP_ALL = Retention()
