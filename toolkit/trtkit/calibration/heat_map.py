"""The heat map of a calibration: layers down, tensors across. Knows how to draw, not how to judge."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from trtkit.calibration.number_formats import Format
from trtkit.calibration.outliers import NOISE_LIMIT, LayerOutliers
from trtkit.calibration.picture import write_picture

Grid = NDArray[np.float64]
_BRIGHT_RATIO = 4.0  # log2: one number in a thousand takes four bits from the others


def draw_heat_map(layers: Sequence[LayerOutliers], cache: Format, path: Path) -> None:
    """Write a PNG."""
    write_picture(heat_map_figure(layers, cache), path)


def heat_map_figure(layers: Sequence[LayerOutliers], cache: Format) -> Figure:
    """On the left how far the largest value stands above the rest, on the right the noise that is added: by a cache of
    that format to keys and values, by FP8 to linear inputs.

    The colours begin at 0 and reach at least to what needs advice, so that a model without outliers looks dark.
    """
    kinds = tensor_kinds(layers)
    figure = Figure(figsize=(2.5 + 0.9 * len(kinds), 2.0 + 0.16 * len(layers)), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, grid, bright, title in (
        (left, np.log2(ratio_grid(layers, kinds)), _BRIGHT_RATIO, "log2(amax / 99.9th percentile)"),
        (right, 100 * noise_grid(layers, kinds), 100 * NOISE_LIMIT, _noise_title(cache)),
    ):
        image = axes.imshow(grid, aspect="auto", cmap="magma", vmin=0, vmax=max(bright, float(grid.max())))
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(len(kinds)), kinds, rotation=60, ha="right", fontsize=7)
        figure.colorbar(image, ax=axes)
    left.set_ylabel("layer")
    left.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def _noise_title(cache: Format) -> str:
    own = "" if cache == "fp8" else f" (k, v: {cache.upper()})"
    return f"noise of FP8 with one scale, %{own}"


def tensor_kinds(layers: Sequence[LayerOutliers]) -> list[str]:
    """The columns: tensors by name, experts of one kind together."""
    return list(dict.fromkeys(_kind(tensor.name) for layer in layers for tensor in layer.tensors))


def ratio_grid(layers: Sequence[LayerOutliers], kinds: Sequence[str]) -> Grid:
    """[layers, kinds]: the largest ratio; 1 where a layer has no such tensor."""
    grid = np.ones((len(layers), len(kinds)))
    for row, layer in enumerate(layers):
        for tensor in layer.tensors:
            column = kinds.index(_kind(tensor.name))
            grid[row, column] = max(grid[row, column], tensor.ratio)
    return grid


def noise_grid(layers: Sequence[LayerOutliers], kinds: Sequence[str]) -> Grid:
    """[layers, kinds]: the largest noise, at most 1, at which nothing is left; 0 where a layer has no such tensor."""
    grid = np.zeros((len(layers), len(kinds)))
    for row, layer in enumerate(layers):
        for advice in layer.advice:
            column = kinds.index(_kind(advice.module))
            grid[row, column] = max(grid[row, column], min(advice.noise, 1.0))
    return grid


def _kind(name: str) -> str:
    """A tensor's name without the number of its expert."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))
