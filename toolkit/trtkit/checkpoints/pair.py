"""Compares two tokenizers id by id. Knows what differs, not whether that is allowed."""

import filecmp
from collections.abc import Iterator
from dataclasses import dataclass

from trtkit.checkpoints.tokenizer import TokenizerSpec

_SHOWN = 3


@dataclass(frozen=True)
class IdDifference:
    """One id that means different text in the two vocabularies; None is "no such id"."""

    token_id: int
    draft: str | None
    target: str | None


@dataclass(frozen=True)
class TokenizerDifference:
    """In what a draft's tokenizer departs from its target's.

    Ids that the draft alone has are left out: the target never confirms one.
    pieces: ids of ordinary text that differ, ascending. special: differing ids that are special in either one, such
    as a reserved token that a later release gave a name. only_target: ids that the draft lacks, ascending.
    segmentation: names of the parts that cut text differently while the ids agree.
    """

    pieces: tuple[IdDifference, ...]
    special: tuple[IdDifference, ...]
    only_target: tuple[int, ...]
    segmentation: tuple[str, ...]
    chat_template: bool


def compare_tokenizers(draft: TokenizerSpec, target: TokenizerSpec) -> TokenizerDifference:
    """What differs; cheap when the two files are the same bytes."""
    chat_template = bool(draft.chat_template) and draft.chat_template != target.chat_template
    if filecmp.cmp(draft.path, target.path, shallow=False):
        return TokenizerDifference((), (), (), (), chat_template)
    special = draft.special | target.special
    changed = tuple(_changed(draft, target))
    return TokenizerDifference(
        pieces=tuple(one for one in changed if one.token_id not in special),
        special=tuple(one for one in changed if one.token_id in special),
        only_target=tuple(sorted(target.pieces_by_id.keys() - draft.pieces_by_id.keys())),
        segmentation=tuple(_segmentation(draft, target)),
        chat_template=chat_template,
    )


def show(differences: tuple[IdDifference, ...]) -> str:
    """The first few of them in words: `id 5: 'b' in the draft, 'c' in the target`."""
    shown = "; ".join(
        f"id {d.token_id}: {d.draft!r} in the draft, {d.target!r} in the target" for d in differences[:_SHOWN]
    )
    return shown + ("; ..." if len(differences) > _SHOWN else "")


def _changed(draft: TokenizerSpec, target: TokenizerSpec) -> Iterator[IdDifference]:
    """Ids that both have and that mean different pieces, ascending."""
    ours, theirs = draft.pieces_by_id, target.pieces_by_id
    for token_id in sorted(ours.keys() & theirs.keys()):
        if ours[token_id] != theirs[token_id]:
            yield IdDifference(token_id, ours[token_id], theirs[token_id])


def _segmentation(draft: TokenizerSpec, target: TokenizerSpec) -> Iterator[str]:
    """Names of what cuts text differently."""
    if draft.kind != target.kind:
        yield f"model type ({draft.kind} and {target.kind})"
    if draft.merges_flat != target.merges_flat and draft.merge_rules != target.merge_rules:
        yield "merges"
    if draft.scores != target.scores:
        yield "scores"
    if draft.byte_fallback != target.byte_fallback:
        yield "byte fallback"
    for part, ours in draft.segmentation.items():
        if ours != target.segmentation[part]:
            yield part.replace("_", "-")
