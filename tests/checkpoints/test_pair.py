"""Two tokenizers are compared id by id, and every kind of difference is told apart."""

import json
from pathlib import Path
from typing import Any

import pytest
from deployments import WORDS, write_tokenizer
from trtkit.checkpoints.pair import TokenizerDifference, compare_tokenizers, show
from trtkit.checkpoints.tokenizer import read_tokenizer, split_merges
from trtkit.errors import CheckpointError

SPECIAL = {0: "<s>", 1: "</s>"}


def compare(folder: Path, draft: dict[str, Any], target: dict[str, Any] | None = None) -> TokenizerDifference:
    for role, parts in (("draft", draft), ("target", target or {})):
        (folder / role).mkdir()
        write_tokenizer(folder / role, parts)
    return compare_tokenizers(read_tokenizer(folder / "draft"), read_tokenizer(folder / "target"))


def test_the_same_file_has_no_difference(tmp_path: Path) -> None:
    assert compare(tmp_path, {}) == TokenizerDifference((), (), (), (), False)


def test_the_same_vocabulary_in_another_order_of_keys_has_none(tmp_path: Path) -> None:
    shuffled = dict(reversed([(word, number) for number, word in enumerate(WORDS)]))
    assert compare(tmp_path, {"words": shuffled}) == TokenizerDifference((), (), (), (), False)


def test_swapped_pieces_are_found_by_id(tmp_path: Path) -> None:
    difference = compare(tmp_path, {"words": ("<s>", "</s>", "b", "a", *WORDS[4:])})
    assert [(d.token_id, d.draft, d.target) for d in difference.pieces] == [(2, "b", "a"), (3, "a", "b")]
    assert (
        show(difference.pieces)
        == "id 2: 'b' in the draft, 'a' in the target; id 3: 'a' in the draft, 'b' in the target"
    )


def test_a_renamed_special_token_is_no_difference_of_text(tmp_path: Path) -> None:
    difference = compare(tmp_path, {"special": SPECIAL | {8: "<|x|>"}}, {"special": SPECIAL | {8: "<|y|>"}})
    assert not difference.pieces
    assert [d.token_id for d in difference.special] == [8]


def test_ids_that_the_draft_lacks_are_listed(tmp_path: Path) -> None:
    difference = compare(tmp_path, {"special": SPECIAL | {9: "<|x|>"}}, {"special": SPECIAL | {8: "<|y|>"}})
    assert difference.only_target == (8,)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"merges": ["b c", "a b", "a bc"]}, "merges"),
        ({"normalizer": {"type": "NFC"}}, "normalizer"),
        ({"byte_fallback": True}, "byte fallback"),
    ],
)
def test_what_cuts_text_differently_is_named(parts: dict[str, Any], named: str, tmp_path: Path) -> None:
    assert compare(tmp_path, parts).segmentation == (named,)


def test_both_spellings_of_merges_are_the_same(tmp_path: Path) -> None:
    assert compare(tmp_path, {"merges": [["a", "b"], ["b", "c"], ["a", "bc"]]}).segmentation == ()


def test_a_unigram_model_is_read_with_its_scores(tmp_path: Path) -> None:
    document = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁a", -1.5]]}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    spec = read_tokenizer(tmp_path)
    assert (spec.kind, spec.pieces, spec.scores) == ("Unigram", {"<unk>": 0, "▁a": 1}, (0.0, -1.5))


def test_the_largest_id_counts_added_tokens(tmp_path: Path) -> None:
    assert read_tokenizer(write_tokenizer(tmp_path, {"special": SPECIAL | {40: "<|x|>"}})).max_id == 40


@pytest.mark.parametrize(
    ("template", "text"),
    [("{{ a }}", "{{ a }}"), ([{"name": "default", "template": "{{ b }}"}], "{{ b }}"), (None, None)],
)
def test_the_chat_template_is_read_in_each_form(template: Any, text: str | None, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, {"settings": {"chat_template": template}})
    assert read_tokenizer(tmp_path).chat_template == text


def test_a_template_file_wins(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, {"settings": {"chat_template": "{{ a }}"}})
    (tmp_path / "chat_template.jinja").write_text("{{ file }}")
    assert read_tokenizer(tmp_path).chat_template == "{{ file }}"


def test_a_template_processor_that_adds_bos_is_seen(tmp_path: Path) -> None:
    processor = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]}
    assert read_tokenizer(write_tokenizer(tmp_path, {"post_processor": processor})).adds_bos
    assert not read_tokenizer(write_tokenizer(tmp_path, {})).adds_bos


def test_a_missing_tokenizer_is_an_error_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="TOK-MISSING") as caught:
        read_tokenizer(tmp_path)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("merges", "flat"),
    [
        (["a b", "b c"], b"a b b c"),
        ([["a", "b"], ["b", "c"]], b"a b b c"),
        ([['"', "\\"], ["[", '",']], b"\1 \0 [ \1,"),
        ([], b""),
    ],
)
def test_merges_are_compared_without_parsing(merges: list[object], flat: bytes, tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path, {"merges": merges})
    assert read_tokenizer(folder).merges_flat == flat


def test_merges_are_split_off_where_the_library_puts_them() -> None:
    data = b'{"model": {"vocab": {"a": 0}, "merges": [["a", "b"]]}}\n'
    assert split_merges(data) == (b'{"model": {"vocab": {"a": 0}, "merges": []}}\n', b'[["a", "b"]]')


@pytest.mark.parametrize(
    "data",
    [
        b'{"model": {"merges": [["a", "b"]], "vocab": {"a": 0}}}',
        b'{"model": {"merges": ["a b"]}, "added_tokens": [{"id": 1}]}',
        b'{"model": {"vocab": [["a", 0.0]]}}',
        b'{"model": {"vocab": {"a": 0}, "merges": ["a b"], "other": ["c"]}}',
        b'{"model": {"vocab": {"a": 0}, "merges": [["a", "merges"]]}}',
    ],
)
def test_a_file_of_another_shape_is_left_whole(data: bytes) -> None:
    assert split_merges(data) == (data, b"")


def test_a_piece_that_looks_like_the_key_confuses_nothing(tmp_path: Path) -> None:
    words = ("<s>", "</s>", "a", "b", '"merges":[', "ab")
    spec = read_tokenizer(write_tokenizer(tmp_path, {"words": words, "merges": ["a b"]}))
    assert spec.merge_rules == ["a b"]
    assert spec.pieces['"merges":['] == 4


def test_merges_in_another_place_are_found_too(tmp_path: Path) -> None:
    document = {"model": {"type": "BPE", "merges": ["a b"], "vocab": {"a": 0, "b": 1}}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert read_tokenizer(tmp_path).merge_rules == ["a b"]
