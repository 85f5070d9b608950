"""A sampling document as an HTML page: distances observed, and what would be found. Knows the document, no samples."""

from collections.abc import Iterator, Mapping
from typing import Any

from trtkit.evaluate.reports.page import COLORS, Cell, Part, bar, ending, heading, left_out, page, paragraph, table

_MODELS = {"transformers": "transformers", "checkpoint": "the converted checkpoint"}
_FOUND = "#d3d9e1"
_COLORS = {"consistent": COLORS["identical"], "different": COLORS["different"]}
_STYLES = {"consistent": "identical", "different": "different"}


def sampling_html(document: Mapping[str, Any]) -> str:
    """Verdict, every test's distance against the one that it would find, its p-value, and how to do it again."""
    return page(f"Sampling parity of {document['deployment']}", _sections(document))


def _sections(document: Mapping[str, Any]) -> Iterator[str]:
    tests = document["tests"]
    num_failed = sum(test["decision"] == "different" for test in tests)
    yield heading(f"Sampling parity of {document['deployment']}", 1)
    verdict = f"{document['verdict']}: {num_failed} of {len(tests)} tests reject the target's distribution"
    yield paragraph(verdict, _STYLES[document["verdict"]])
    yield paragraph(
        f"Probabilities of {_MODELS[document['probabilities']]}. "
        f"Temperature {document['temperature']:g}, seeds from {document['seed']}; one false alarm of the whole run "
        f"with probability {document['alpha']:g}; a total variation of {document['distance']:g} is found with "
        f"probability {document['power']:g}; {document['num_samples']} of at most {document['most_samples']} samples "
        "were needed."
    )
    if document["same_draws"] is not None:
        yield paragraph(f"The same tokens with and without drafts: {document['same_draws']:.1%} of the seeds.")
    yield heading("Distance from the target's distribution")
    yield paragraph(
        "Total variation between samples and probabilities; grey up to the distance that so many samples find.", "muted"
    )
    titles = ("samples", "bins", "p", "distance", "would find")
    head = [*map(Cell, ("prompt", "draft length", "token", "")), *(Cell(title, is_number=True) for title in titles)]
    yield table([*head, Cell("decision")], _rows(document))
    yield from left_out(document["skipped"])
    yield from ending(document)


def _rows(document: Mapping[str, Any]) -> Iterator[list[Cell]]:
    full = max(max(test["distance"], test["detectable_distance"]) for test in document["tests"])
    for test in document["tests"]:
        observed, found, decision = test["distance"], test["detectable_distance"], test["decision"]
        parts = [Part(observed, _COLORS[decision]), Part(max(0.0, found - observed), _FOUND)]
        figures = (str(test["num_samples"]), str(test["num_bins"]), f"{test['p_value']:.3g}")
        yield [
            *(Cell(str(test[key])) for key in ("name", "draft_len", "position")),
            Cell("", drawing=bar(parts, full, f"{observed:.3f} observed, {found:.3f} would be found")),
            *(Cell(text, is_number=True) for text in (*figures, f"{observed:.3f}", f"{found:.3f}")),
            Cell(decision, _STYLES[decision]),
        ]
