"""How two sets of KV scales are shown side by side. Knows the comparison's record, no files."""

from rich.table import Table
from rich.text import Text

from trtkit.calibration.compare import Comparison


def comparison_table(comparison: Comparison, here: str) -> Table:
    """One line per layer; `here` names the side that the checkpoint is held against. Only the verdict where neither has
    scales."""
    title = Text(f"KV scales of {comparison.folder}: {comparison.verdict}")
    if not comparison.differences:
        verdict = Table(box=None, pad_edge=False, show_header=False)
        verdict.add_row(title)
        return verdict
    table = Table("layer", here, "there", f"there / {here}", title=title, title_justify="left", box=None)
    for difference in comparison.differences:
        figures = (difference.here, difference.there, difference.factor)
        table.add_row(str(difference.layer), *("-" if figure is None else f"{figure:.4g}" for figure in figures))
    return table
