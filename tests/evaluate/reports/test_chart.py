"""Axes of charts: round numbers, at any scale."""

import pytest
from trtkit.evaluate.reports.chart import ticks


def test_ticks_are_round_and_inside_the_range() -> None:
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.3, 1.9) == pytest.approx([0.5, 1.0, 1.5])


def test_small_figures_keep_their_place_on_an_axis() -> None:
    assert ticks(0, 4e-13) == pytest.approx([0, 1e-13, 2e-13, 3e-13, 4e-13], abs=0)
