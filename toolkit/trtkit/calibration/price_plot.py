"""The plot of prices: quality against bytes per token, one point per KV precision. Knows how to draw only."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trtkit.calibration.picture import write_picture
from trtkit.calibration.price import Price, PriceRow

_LABEL_STEP = 0.045  # of the height: a line of the labels' font


def draw_prices(prices: Sequence[PriceRow], path: Path) -> None:
    """Write a PNG: further left is smaller, further down is better."""
    write_picture(price_figure(prices), path)


def price_figure(rows: Sequence[PriceRow]) -> Figure:
    """A point for each price with its standard error, and its name beside it on a line of its own. What has no price is
    named above.
    """
    prices = [row for row in rows if isinstance(row, Price)]
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if without := [row.name for row in rows if not isinstance(row, Price)]:
        axes.set_title(f"without a price: {', '.join(without)}", fontsize=8, wrap=True)
    x, y = [price.bytes_per_token / 1024 for price in prices], [price.perplexity for price in prices]
    axes.errorbar(x, y, yerr=[price.perplexity_error for price in prices], fmt="o", elinewidth=0.6, capsize=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:.5g}")
    axes.yaxis.set_minor_formatter("{x:.5g}")
    axes.margins(x=0.12)
    axes.autoscale_view()  # so that the places below are final
    places = (axes.transData + axes.transAxes.inverted()).transform(list(zip(x, y, strict=True)))
    for price, place, at in zip(prices, places, _label_places([tuple(place) for place in places]), strict=True):
        far = abs(at[1] - place[1]) > _LABEL_STEP / 2
        axes.annotate(
            price.name,
            (price.bytes_per_token / 1024, price.perplexity),
            xytext=at,
            textcoords="axes fraction",
            fontsize=7,
            va="center",
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "grey"} if far else None,
        )
    axes.set_xlabel("KV cache, KiB per token")
    axes.set_ylabel("perplexity on the held-out texts")
    return figure


def _label_places(points: Sequence[tuple[float, ...]]) -> list[tuple[float, float]]:
    """Right of each point, one line above the highest label that would be covered; fractions of the axes."""
    width = 0.17  # of the longest name
    found: dict[int, tuple[float, float]] = {}
    for index in sorted(range(len(points)), key=lambda i: points[i][1]):
        x, y = points[index][0] + 0.012, points[index][1]
        near = [other for other in found.values() if abs(other[0] - x) < width]
        found[index] = (x, max([y, *(other[1] + _LABEL_STEP for other in near)]))
    return [found[index] for index in range(len(points))]
