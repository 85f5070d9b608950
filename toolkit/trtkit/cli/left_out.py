"""The prompts that a report left out, on a terminal. Knows a part of the documents, runs nothing."""

from collections.abc import Mapping, Sequence

from rich.text import Text


def left_out(skipped: Sequence[Mapping[str, str]]) -> list[Text]:
    """One line for each prompt that was not asked, with the reason."""
    return [Text(f"left out {entry['name']}: {entry['reason']}") for entry in skipped]
