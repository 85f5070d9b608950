"""A checkpoint document as an HTML page: error by depth, agreement by position. Knows the document, no model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trtkit.evaluate.checkpoint.drift import shown
from trtkit.evaluate.checkpoint.summary import explain_point, figures_of, is_explained
from trtkit.evaluate.reports.chart import Axis, Line, chart
from trtkit.evaluate.reports.page import Cell, ending, heading, left_out, page, paragraph, table

_KL = {"mean_kl": "mean", "max_kl": "largest"}


def checkpoint_html(document: Mapping[str, Any]) -> str:
    """Verdict and fault, the error after every part of every layer, agreement and KL by position, and how to do it
    again."""
    return page(_title(document), _sections(document))


def _title(document: Mapping[str, Any]) -> str:
    return f"Checkpoint parity of {document['deployment']}, {document['role']}"


def _sections(document: Mapping[str, Any]) -> Iterator[str]:
    fault = document["first_fault"]
    yield heading(_title(document), 1)
    formats = f"{document['dtype']}, quantization {document['quantization']}, cache {document['kv_dtype']}"
    yield paragraph(f"{document['verdict']} ({formats})", "identical" if fault is None else "different")
    if fault is not None:
        look_at = f"look at {', '.join(fault['tensors'])}; everything before is right"
        yield paragraph(f"{fault['name']}: {explain_point(fault)}; {look_at}", "different")
    yield table([Cell("figure"), Cell("value")], ([Cell(k), Cell(v)] for k, v in figures_of(document).items()))
    yield from _depth(document["points"])
    yield from _positions(document["by_position"])
    yield from left_out(document["skipped"])
    yield from ending(document)


def _depth(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The points stand half a layer apart, from the embedding at 0 on; the logits come last."""
    yield heading("Error by depth")
    yield paragraph("Relative error, root mean square over all positions; the last point is the logits.", "muted")
    placed = [{**point, "across": number / 2} for number, point in enumerate(points)]
    lines = _lines(placed, {"error": "measured", "tolerance": "rounding explains"})
    yield chart(lines, Axis("layers passed", low=0), Axis("relative error", low=0))
    head = [Cell("after"), Cell("relative error", is_number=True), Cell("rounding explains", is_number=True)]
    yield table([*head, Cell("tensors")], map(_point_row, points))


def _point_row(point: Mapping[str, Any]) -> list[Cell]:
    error, style = shown(point["error"]), "identical" if is_explained(point) else "different"
    tolerance = f"{point['tolerance']:.3g}"
    tensors = "" if is_explained(point) else ", ".join(point["tensors"])
    return [Cell(point["name"]), Cell(error, style, is_number=True), Cell(tolerance, is_number=True), Cell(tensors)]


def _positions(stretches: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield heading("Agreement by position")
    yield paragraph("KL of the deployed distribution from the original's, over all texts.", "muted")
    placed = [{**stretch, "across": (stretch["first"] + stretch["last"]) / 2} for stretch in stretches]
    yield chart(_lines(placed, _KL), Axis("position", low=0), Axis("KL, nats", low=0))
    best = _lines(placed, {"top1_agreement": "same best token"})
    yield chart(best, Axis("position", low=0), Axis("share", 0, 1))
    titles = ("positions", "predictions", "same best token", "KL, mean (nats)", "KL, largest")
    yield table([Cell(title, is_number=True) for title in titles], map(_stretch_row, stretches))


def _stretch_row(stretch: Mapping[str, Any]) -> list[Cell]:
    first, last = stretch["first"], stretch["last"]
    texts = (
        str(first) if first == last else f"{first} to {last}",
        str(stretch["num_positions"]),
        f"{stretch['top1_agreement']:.2%}",
        *(shown(stretch[key]) for key in _KL),
    )
    return [Cell(text, is_number=True) for text in texts]


def _lines(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[Line]:
    """A line for each key of these names: its values over the rows' "across", those that are numbers."""
    points = {name: [(row["across"], row[key]) for row in rows if row[key] is not None] for key, name in names.items()}
    return [Line(name, values) for name, values in points.items() if values]
