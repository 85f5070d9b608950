"""An empty matplotlib figure that is drawn without a display. Knows no data; matplotlib comes with the first one."""

from typing import TYPE_CHECKING

from trtkit.errors import MissingToolError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def require_plots() -> None:
    """Raise MissingToolError without matplotlib: before anything is measured."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingToolError(
            "matplotlib is not installed, so there is no plot", "pip install 'trtkit[plot]', or use --no-plot"
        ) from None


def new_figure(width: float, height: float) -> "Figure":
    """A figure of width x height inches. Raises MissingToolError without matplotlib."""
    require_plots()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
