"""Of very much text an excerpt is drawn: by seed, from everywhere, and no more than the samples need."""

from pathlib import Path

from tiny import VOCAB_SIZE, tiny_tokenizer
from trtkit.calibration.excerpt import excerpt
from trtkit.calibration.samples import SampleOptions, make_samples
from trtkit.calibration.texts import CalibrationText, shipped_texts

WORDS = [f"word{number} " for number in range(200_000)]
BOOK = CalibrationText("book", "".join(WORDS))
LINES = [CalibrationText(f"line-{n}", "".join(WORDS[20 * n : 20 * n + 20])) for n in range(10_000)]


def characters(texts: list[CalibrationText]) -> int:
    return sum(len(text.text or "") for text in texts)


def test_texts_that_are_few_stay_as_they_are() -> None:
    assert excerpt(shipped_texts(), 1, 0) == shipped_texts()
    short = [CalibrationText("long", "x" * 900_000)]
    assert excerpt(short, 1, 0) == short
    assert excerpt([BOOK], 1_000_000, 0) == [BOOK], "so many tokens need all of it"


def test_much_text_is_bounded_and_drawn_from_everywhere() -> None:
    for texts in ([BOOK], LINES):
        drawn = excerpt(texts, 1000, 7)
        assert 1_000_000 <= characters(drawn) < 1_020_000 < characters(texts)
        assert drawn == excerpt(texts, 1000, 7) != excerpt(texts, 1000, 8)
        # The halves of the text are both among them.
        numbers = [int(word) for text in drawn for word in (text.text or "").replace("word", "").split()[1:-1]]
        assert min(numbers) < 20_000 and max(numbers) > 180_000


def test_every_block_is_a_part_of_its_text_and_none_comes_twice() -> None:
    drawn = excerpt([BOOK], 1000, 0)
    assert len({text.name for text in drawn}) == len(drawn) > 50
    for text in drawn:
        start = int(text.name.removeprefix("book@"))
        assert (BOOK.text or "")[start:].startswith(text.text or "-")


def test_chats_stay_whole_and_token_ids_cost_nothing() -> None:
    chats = [CalibrationText(f"c{n}", messages=(("user", "x" * 30_000),)) for n in range(50)]
    ids = CalibrationText("ids", token_ids=(5,) * 10_000_000)
    drawn = excerpt([*chats, ids], 1, 0)
    assert 34 <= len(drawn) <= 35 and all(text in (*chats, ids) for text in drawn)
    assert excerpt([ids], 1, 0) == [ids]


def test_samples_of_a_huge_line_are_as_many_as_asked_for(tmp_path: Path) -> None:
    samples = make_samples([BOOK], tiny_tokenizer(tmp_path), VOCAB_SIZE, SampleOptions(64, 128, 3))
    assert [len(sample.token_ids) for sample in samples] == [128] * 64
    assert len({sample.name.partition("#")[0] for sample in samples}) > 20, "from all over the text"
