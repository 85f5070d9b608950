"""The plot of prices: quality against bytes per token, one point per KV precision. Knows how to draw only."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trtkit.calibration.picture import write_picture
from trtkit.calibration.price import Price


def draw_prices(prices: Sequence[Price], path: Path) -> None:
    """Write a PNG: further left is smaller, further down is better."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([p.bytes_per_token / 1024 for p in prices], [p.perplexity for p in prices], "o")
    for price in prices:
        axes.annotate(price.name, (price.bytes_per_token / 1024, price.perplexity), fontsize=7)
    axes.set_xlabel("KV cache, KiB per token")
    axes.set_ylabel("perplexity on the held-out texts")
    write_picture(figure, path)
