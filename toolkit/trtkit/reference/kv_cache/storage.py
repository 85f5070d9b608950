"""KvStorage: the cache tensors. Knows rows and their format, not blocks and not who owns them."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from trtkit.errors import InputError
from trtkit.reference.kv_cache.block_tables import RowCopy, RowSettle, RowWork
from trtkit.reference.kv_cache.formats import Format, Plane
from trtkit.reference.kv_cache.heavy_hitters import HeavyHitters


class KvStorage:
    """Keys and values of every layer, token-major, so that one write per layer stores both.

    L layers, C cache rows, H num_kv_heads, D head_dim.
        planes  [L, C, width] each; without a format one of 2 * H * D numbers
        like    any tensor of the dtype and device in which keys and values are read
    hitters keeps the books of heavy hitters, where there are any.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_rows: int,
        kv_shape: tuple[int, int],
        like: Tensor,
        codec: Format | None = None,
        has_hitters: bool = False,
    ) -> None:
        num_kv_heads, head_dim = kv_shape
        planes = codec.planes if codec else (Plane(2 * num_kv_heads * head_dim, like.dtype),)
        self._planes = _allocated(like, (num_layers, num_rows), planes)
        self._layers = [list(plane) for plane in self._planes]
        self._codec = codec
        self._kv_shape = kv_shape
        # Made once: rows that are stored as they are can be read by one operation.
        self._views = [] if codec else [self._split(layer) for layer in self._layers[0]]
        self.like = like
        self.hitters = HeavyHitters(num_layers, num_rows, num_kv_heads, like) if has_hitters else None

    @property
    def num_bytes(self) -> int:
        """Memory of keys and values together, and of what is noted about them."""
        stored = sum(plane.numel() * plane.element_size() for plane in self._planes)
        return stored + (self.hitters.num_bytes if self.hitters else 0)

    def write(self, layer: int, row_index: Tensor, key_values: Tensor) -> None:
        """Store new tokens.

        N tokens.
            row_index   [N] int64
            key_values  [N, 2 * H * D]
        """
        parts = (key_values,) if self._codec is None else self._codec.encode(layer, key_values)
        for plane, part in zip(self._layers, parts, strict=True):
            plane[layer].index_copy_(0, row_index, part)

    def read(self, layer: int, rows: range | Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of some rows: views where neighbouring rows are stored as they are, else copies.

        T rows.
            rows     a range, or [T] int64
            returns  [1, H, T, D] each
        """
        if isinstance(rows, range) and self._codec is None:
            keys, values = self._views[layer]
            return keys.narrow(2, rows.start, len(rows)), values.narrow(2, rows.start, len(rows))
        if isinstance(rows, range):
            parts = [plane[layer][rows.start : rows.stop] for plane in self._layers]
        else:
            parts = [plane[layer].index_select(0, rows) for plane in self._layers]
        return self._split(parts[0] if self._codec is None else self._codec.decode(layer, parts))

    def _split(self, key_values: Tensor) -> tuple[Tensor, Tensor]:
        """[T, 2 * H * D] -> [1, H, T, D], twice"""
        split = key_values.view(-1, 2, *self._kv_shape)
        return split[:, 0].transpose(0, 1)[None], split[:, 1].transpose(0, 1)[None]

    def apply(self, work: Iterable[RowWork]) -> None:
        """Copy and clear rows, in order, in every layer, and settle who is a heavy hitter."""
        for item in work:
            if isinstance(item, RowSettle):
                assert self.hitters is not None, "tables and storage were made for different caches"
                self.hitters.settle(item.first_row, item.num_computed, self._move_heads)
                continue
            for plane in self._planes:
                if isinstance(item, RowCopy):
                    copied = plane[:, item.source : item.source + item.num_rows]
                    plane[:, item.target : item.target + item.num_rows] = copied
                else:
                    plane[:, item.start : item.end] = 0

    def _move_heads(self, layers: Tensor, heads: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Copy the codes of some heads from row to row; every plane has the parts of keys, then of values, by head."""
        for plane in self._planes:
            parts = plane.view(*plane.shape[:2], 2, self._kv_shape[0], -1)
            parts[layers, targets, :, heads] = parts[layers, sources, :, heads]


def _allocated(like: Tensor, shape: tuple[int, int], planes: Sequence[Plane]) -> list[Tensor]:
    """Zeros, not garbage: masked positions are read too, and a NaN times a probability of zero is NaN.

    Raises InputError KV-MEMORY.
    """
    try:
        return [like.new_zeros(*shape, width, dtype=dtype) for width, dtype in planes]
    except RuntimeError as error:  # PyTorch has no type of its own for a failed allocation on the processor
        num_bytes = shape[0] * shape[1] * sum(width * dtype.itemsize for width, dtype in planes)
        raise InputError(
            f"no memory for a KV cache of {num_bytes / 2**30:.1f} GiB",
            "lower max_batch_size, max_seq_len or num_blocks, or choose a smaller dtype",
            code="KV-MEMORY",
        ) from error
