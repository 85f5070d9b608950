"""Taps: where a layer is listened to while it runs. Knows modules and caches, not what is done with what is heard."""

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

Heard = Callable[[str, Tensor], None]
"""(name, tensor [T, C]): "k", "v", or a linear layer's name inside its layer."""


class LinearTap:
    """Hears the input of every linear layer; layers that are fed the same tensor are heard once, under one name.

    aliases: linear layer -> the name its input is heard under.
    """

    def __init__(self, linears: dict[str, nn.Module], heard: Heard) -> None:
        self._linears = linears
        self._heard = heard
        self._handles: list[RemovableHandle] = []
        self._last: tuple[Tensor, str] | None = None
        self.aliases: dict[str, str] = {}

    def __enter__(self) -> Self:
        for name, module in self._linears.items():
            self._handles.append(module.register_forward_pre_hook(self._hook(name)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._last = None

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            x: Tensor = args[0]
            if self._last is not None and self._last[0] is x:
                self.aliases[name] = self._last[1]
                return
            self._last = (x, name)
            self.aliases[name] = name
            self._heard(name, x.reshape(-1, x.shape[-1]))

        return hook


class CacheTap:
    """Stands where transformers' cache stands and hears keys and values as they enter it, after rope.

    H KV heads, T tokens, D head_dim: transformers gives [1, H, T, D]; heard are [T, H * D].
    """

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Hand both on as they are."""
        for name, tensor in (("k", keys), ("v", values)):
            self._heard(name, tensor[0].transpose(0, 1).flatten(1))
        return keys, values
