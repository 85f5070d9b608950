"""KvStorage: the cache tensors. Knows slots as row ranges, not who owns them."""

from torch import Tensor


class KvStorage:
    """Keys and values of every layer, token-major, so that one write per layer stores both.

    L layers, S slots, C capacity of a slot in tokens, H num_kv_heads, D head_dim.
        rows       [L, S * C, 2 * H * D]
        keys[l]    [1, H, S * C, D]  a view of it
        values[l]  [1, H, S * C, D]  a view of it
    """

    def __init__(
        self, *, num_layers: int, num_slots: int, capacity: int, kv_shape: tuple[int, int], like: Tensor
    ) -> None:
        num_kv_heads, head_dim = kv_shape
        # Zeros, not garbage: masked positions are read too, and a NaN times a probability of zero is NaN.
        self.rows = like.new_zeros(num_layers, num_slots * capacity, 2 * num_kv_heads * head_dim)
        split = self.rows.view(num_layers, num_slots * capacity, 2, num_kv_heads, head_dim)
        self.keys = [layer[:, 0].transpose(0, 1)[None] for layer in split]
        self.values = [layer[:, 1].transpose(0, 1)[None] for layer in split]
        self._layers = list(self.rows)
        self.capacity = capacity

    @property
    def num_bytes(self) -> int:
        """Memory of keys and values together."""
        return self.rows.numel() * self.rows.element_size()

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of one slot to another, in every layer."""
        start, end = source * self.capacity, target * self.capacity
        self.rows[:, end : end + num_tokens] = self.rows[:, start : start + num_tokens]

    def clear(self, slot: int, start: int) -> None:
        """Zero the tokens of a slot from `start` on."""
        self.rows[:, slot * self.capacity + start : (slot + 1) * self.capacity] = 0

    def write(self, layer: int, row_index: Tensor, key_values: Tensor) -> None:
        """Store new tokens.

        N tokens.
            row_index   [N] int64: slot * C + position
            key_values  [N, 2 * H * D]
        """
        self._layers[layer].index_copy_(0, row_index, key_values)
