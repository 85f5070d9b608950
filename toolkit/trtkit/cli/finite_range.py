"""FiniteRange: a number of the command line within bounds. Knows click, no option."""

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """click's FloatRange, which lets NaN through, since NaN is below and above nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Fails for NaN and the infinities as for any number out of range."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number
