"""KvStorage: the cache tensors. Knows rows, not blocks and not who owns them."""

from collections.abc import Iterable

from torch import Tensor

from trtkit.reference.kv_cache.block_tables import RowCopy, RowWork


class KvStorage:
    """Keys and values of every layer, token-major, so that one write per layer stores both.

    L layers, C cache rows, H num_kv_heads, D head_dim.
        rows       [L, C, 2 * H * D]
        keys[l]    [1, H, C, D]  a view of it
        values[l]  [1, H, C, D]  a view of it
        like       any tensor of the dtype and device in which keys and values are read
    """

    def __init__(self, *, num_layers: int, num_rows: int, kv_shape: tuple[int, int], like: Tensor) -> None:
        num_kv_heads, head_dim = kv_shape
        # Zeros, not garbage: masked positions are read too, and a NaN times a probability of zero is NaN.
        self.rows = like.new_zeros(num_layers, num_rows, 2 * num_kv_heads * head_dim)
        split = self.rows.view(num_layers, num_rows, 2, num_kv_heads, head_dim)
        self._keys = [layer[:, 0].transpose(0, 1)[None] for layer in split]
        self._values = [layer[:, 1].transpose(0, 1)[None] for layer in split]
        self._layers = list(self.rows)
        self._kv_shape = kv_shape
        self.like = like

    @property
    def num_bytes(self) -> int:
        """Memory of keys and values together."""
        return self.rows.numel() * self.rows.element_size()

    def write(self, layer: int, row_index: Tensor, key_values: Tensor) -> None:
        """Store new tokens.

        N tokens.
            row_index   [N] int64
            key_values  [N, 2 * H * D]
        """
        self._layers[layer].index_copy_(0, row_index, key_values)

    def read(self, layer: int, rows: range | Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of some rows: views for neighbouring rows, copies for an index.

        T rows.
            rows     a range, or [T] int64
            returns  [1, H, T, D] each
        """
        if isinstance(rows, range):
            return (
                self._keys[layer].narrow(2, rows.start, len(rows)),
                self._values[layer].narrow(2, rows.start, len(rows)),
            )
        split = self._layers[layer].index_select(0, rows).view(len(rows), 2, *self._kv_shape)
        return split[:, 0].transpose(0, 1)[None], split[:, 1].transpose(0, 1)[None]

    def apply(self, work: Iterable[RowWork]) -> None:
        """Copy and clear rows, in order, in every layer."""
        for item in work:
            if isinstance(item, RowCopy):
                copied = self.rows[:, item.source : item.source + item.num_rows]
                self.rows[:, item.target : item.target + item.num_rows] = copied
            else:
                self.rows[:, item.start : item.end] = 0

    def clear(self, rows: range) -> None:
        """Zero some rows in every layer."""
        self.rows[:, rows.start : rows.stop] = 0
