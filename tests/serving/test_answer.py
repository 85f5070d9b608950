"""What the caller sees of a run: exact text, ended by stop words wherever steps are cut."""

import pytest
from scripted_llm import ScriptedLlm
from tiny import tiny_tokenizer
from trtkit.draft_length import FixedDraftLength
from trtkit.serving.answer import pieces_of
from trtkit.serving.cancellation import PolledCancellation
from trtkit.serving.draft_target import DraftTargetRun, Generation
from trtkit.serving.text import TextTokenizer
from trtkit.serving.words import StopWords


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return TextTokenizer.load(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def reciting(ids: list[int]) -> ScriptedLlm:
    return ScriptedLlm(lambda context: ids[len(context) - 1])


def run_of(ids: list[int], *, drafts: bool, tokens: int | None = None) -> DraftTargetRun:
    generation = Generation("r", (0,), tokens or len(ids))
    return DraftTargetRun(generation, reciting(ids), reciting(ids) if drafts else None, FixedDraftLength(4))


@pytest.mark.parametrize("drafts", [True, False])
def test_the_pieces_are_the_text(tokenizer: TextTokenizer, drafts: bool) -> None:
    text = "日本 and 👩‍👩‍👧‍👦 together"
    run = run_of(tokenizer.encode(text, add_special_tokens=False), drafts=drafts)
    pieces = list(pieces_of(run, tokenizer.stream(skip_special_tokens=True), StopWords(()), lambda: False))
    assert "".join(piece.text for piece in pieces) == text
    assert [token for piece in pieces for token in piece.token_ids] == run.token_ids


@pytest.mark.parametrize("drafts", [True, False])
def test_a_stop_word_ends_the_text_before_it_also_across_draft_boundaries(
    tokenizer: TextTokenizer, drafts: bool
) -> None:
    ids = tokenizer.encode("one two three STOP four five six", add_special_tokens=False)
    run = run_of(ids, drafts=drafts)
    pieces = pieces_of(run, tokenizer.stream(skip_special_tokens=True), StopWords(["STOP"]), lambda: False)
    assert "".join(piece.text for piece in pieces) == "one two three "
    assert run.finish_reason == "stop_words"
    assert len(run.token_ids) < len(ids)


@pytest.mark.parametrize("drafts", [True, False])
def test_tokens_behind_a_stop_word_are_no_part_of_the_answer(tokenizer: TextTokenizer, drafts: bool) -> None:
    ids = tokenizer.encode("abcdefgh", add_special_tokens=False)
    assert len(ids) == 8, "a token for each letter, and steps of 5"
    run = run_of(ids, drafts=drafts)
    pieces = list(pieces_of(run, tokenizer.stream(skip_special_tokens=True), StopWords(["bc"]), lambda: False))
    assert "".join(piece.text for piece in pieces) == "a"
    assert run.token_ids == ids[:3] == [token for piece in pieces for token in piece.token_ids]


@pytest.mark.parametrize("drafts", [True, False])
def test_a_stop_word_that_the_last_token_completes_is_why_the_answer_ends(
    tokenizer: TextTokenizer, drafts: bool
) -> None:
    run = run_of(tokenizer.encode("abcd", add_special_tokens=False), drafts=drafts)
    pieces = list(pieces_of(run, tokenizer.stream(skip_special_tokens=True), StopWords(["cd"]), lambda: False))
    assert "".join(piece.text for piece in pieces) == "ab"
    assert run.finish_reason == "stop_words"


def test_the_beginning_of_a_stop_word_at_the_end_of_the_answer_is_shown(tokenizer: TextTokenizer) -> None:
    run = run_of(tokenizer.encode("one ST", add_special_tokens=False), drafts=False)
    pieces = pieces_of(run, tokenizer.stream(skip_special_tokens=True), StopWords(["STOP"]), lambda: False)
    assert "".join(piece.text for piece in pieces) == "one ST"
    assert run.finish_reason == "length"


def test_a_cancelled_answer_ends_after_the_step_under_way(tokenizer: TextTokenizer) -> None:
    run = run_of(tokenizer.encode("abcdefgh", add_special_tokens=False), drafts=True)
    pieces = list(pieces_of(run, tokenizer.stream(skip_special_tokens=True), StopWords(()), lambda: True))
    assert run.finish_reason == "cancelled"
    assert [len(piece.token_ids) for piece in pieces] == [5, 0]


def test_triton_is_asked_for_a_cancellation_once_per_period() -> None:
    now, asked = [0], []
    cancellation = PolledCancellation(lambda: bool(asked.append(now[0])) or now[0] > 25, 10, lambda: now[0])
    answers = []
    for step in range(40):
        now[0] = step
        answers.append(cancellation.is_cancelled())
    assert asked == [10, 20, 30]
    assert answers.index(True) == 30
    assert all(answers[30:])
