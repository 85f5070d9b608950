"""LinearWeight: one linear layer's numbers before they are packed, and how parts of it become one. Runs nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trtkit.reference.model.rounding import Rounding

JoinRows = Callable[[list[Tensor]], Tensor]
"""Puts the parts of several ranks together along their first axis."""


@dataclass(frozen=True)
class LinearWeight:
    """y = round(x * pre_scale) W^T * scale * row scale + bias.

    O outputs, I inputs.
        weight     [O, I] values in the model's dtype, or codes in one that holds them exactly
        scale      [O] float32, or None for values
        pre_scale  [I] in the model's dtype, or None
        rounding   how inputs become codes, or None
    """

    weight: Tensor
    scale: Tensor | None = None
    pre_scale: Tensor | None = None
    rounding: Rounding | None = None

    def with_rows(self, change: Callable[[Tensor], Tensor]) -> "LinearWeight":
        """The same layer with its outputs reordered or cut."""
        return replace(self, weight=change(self.weight), scale=None if self.scale is None else change(self.scale))


def joined_by_rows(parts: Sequence[LinearWeight], join: JoinRows) -> LinearWeight | None:
    """One layer whose outputs are those of the parts; None when the parts round their common input differently."""
    first = parts[0]
    if any(not _same_input(first, part) for part in parts):
        return None
    scales = [part.scale for part in parts if part.scale is not None]
    return replace(first, weight=join([part.weight for part in parts]), scale=join(scales) if scales else None)


def joined_by_columns(parts: Sequence[LinearWeight]) -> list[LinearWeight]:
    """One layer whose input is the parts' inputs side by side, where they are scaled and rounded alike; else all of
    them, to be summed: each rank of a deployment rounds its own part of the input with its own scale."""
    first = parts[0]
    if any(part.rounding != first.rounding or not _equal(part.scale, first.scale) for part in parts):
        return list(parts)
    pre_scales = [part.pre_scale for part in parts if part.pre_scale is not None]
    weight = torch.cat([part.weight for part in parts], 1) if len(parts) > 1 else first.weight
    return [replace(first, weight=weight, pre_scale=torch.cat(pre_scales) if pre_scales else None)]


def _same_input(one: LinearWeight, other: LinearWeight) -> bool:
    is_scaled = (one.scale is None) == (other.scale is None)
    return is_scaled and one.rounding == other.rounding and _equal(one.pre_scale, other.pre_scale)


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
