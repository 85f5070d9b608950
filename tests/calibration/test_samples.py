"""Texts and samples: what is read, how it is cut, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import VOCAB_SIZE, tiny_tokenizer
from trtkit.calibration.samples import Sample, SampleOptions, hold_out, make_samples
from trtkit.calibration.texts import CalibrationText, read_texts, shipped_texts
from trtkit.errors import InputError
from trtkit.prompts.files import read_prompts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_tokenizer(tmp_path)


def test_the_shipped_texts_are_many_and_of_every_kind() -> None:
    names = {text.name.rpartition("-")[0] for text in shipped_texts()}
    assert names == {"chats", "classics", "code", "languages", "prose"}
    assert all(text.text or text.messages for text in shipped_texts())


def test_samples_are_chosen_by_seed(folder: Path) -> None:
    def samples(seed: int) -> list[str]:
        return [s.name for s in make_samples(shipped_texts(), folder, VOCAB_SIZE, SampleOptions(8, 64, seed))]

    assert samples(0) == samples(0)
    assert samples(0) != samples(1)


def test_what_is_held_out_was_not_measured_however_often_it_is_given() -> None:
    texts = [Sample(f"t{n}", (n % 16, 7)) for n in range(40)]
    seen, held_out = hold_out(texts)
    assert len(held_out) == 2, "an eighth of sixteen different ones"
    assert not {sample.token_ids for sample in seen} & {sample.token_ids for sample in held_out}
    assert [sample.name for sample in seen] == [s.name for s in texts if s.token_ids[0] < 14], "the others stay"
    assert hold_out([Sample(f"t{n}", (5, 6)) for n in range(9)])[1] == []


def test_short_pieces_keep_all_of_a_text(folder: Path) -> None:
    text = CalibrationText("t", token_ids=tuple(range(5, 205)))
    for max_len in (1, 4, 8):
        samples = make_samples([text], folder, VOCAB_SIZE, SampleOptions(1000, max_len))
        assert sorted(token for sample in samples for token in sample.token_ids) == list(range(5, 205))


def test_long_texts_are_cut_and_nothing_is_repeated(folder: Path) -> None:
    samples = make_samples([CalibrationText("t", "a " * 500)], folder, VOCAB_SIZE, SampleOptions(100, 128))
    lengths = sorted((len(sample.token_ids) for sample in samples), reverse=True)
    assert len(lengths) > 2
    assert lengths[:-1] == [128] * (len(lengths) - 1)
    assert len({sample.name for sample in samples}) == len(samples)


def test_text_jsonl_chat_and_token_ids_are_read(folder: Path) -> None:
    rows = [
        {"text": "one " * 50},
        {"messages": [{"role": "user", "content": "hi " * 50}]},
        {"token_ids": [5, 6, 7] * 20},
    ]
    path = folder / "set.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = make_samples(read_texts(path), folder, VOCAB_SIZE, SampleOptions())
    assert {sample.name for sample in samples} == {"set-1", "set-2", "set-3"}
    (folder / "set.txt").write_text("first text\nstill first\n\nsecond text\n")
    assert [text.text for text in read_texts(folder / "set.txt")] == ["first text\nstill first", "second text"]


@pytest.mark.parametrize(
    ("content", "code"),
    [("", "CALIB-EMPTY"), ("\n\n", "CALIB-EMPTY"), ('{"text": ""}', "CALIB-TEXT"), ("not json", "CALIB-TEXT"),
     ('{"prompt": "x"}', "CALIB-TEXT"), ('{"token_ids": ["a"]}', "CALIB-TEXT"), ("[1]", "CALIB-TEXT"),
     ('{"messages": [{"role": "user"}]}', "CALIB-TEXT"), (r'{"text": "a \ud800 b"}', "CALIB-TEXT"),
     (r'{"messages": [{"role": "user", "content": "\udfff"}]}', "CALIB-TEXT")],
)  # fmt: skip
def test_a_file_without_texts_is_refused(tmp_path: Path, content: str, code: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_texts(path)
    assert caught.value.code == code
    assert str(path) in str(caught.value)


def test_a_line_of_brackets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="CALIB-TEXT"):
        read_texts(path)


@pytest.mark.parametrize("suffix", ["jsonl", "txt"])
def test_a_byte_order_mark_is_no_part_of_the_text(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"set.{suffix}"
    path.write_bytes(b"\xef\xbb\xbf" + {"jsonl": b'{"text": "one"}\n', "txt": b"one\n"}[suffix])
    assert [text.text for text in read_texts(path)] == ["one"]


@pytest.mark.parametrize(
    ("template", "said"),
    [("{{ raise_exception('no system role') }}", "TemplateError 'no system role'"),
     ("{% if", "TemplateSyntaxError"), ("{{ 1 / 0 }}", "ZeroDivisionError"), ("{{ messages + 1 }}", "TypeError")],
)  # fmt: skip
def test_a_chat_that_the_template_refuses_is_named(template: str, said: str, folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    chat = CalibrationText("set-3", messages=(("system", "be brief"), ("user", "hi " * 200)))
    with pytest.raises(InputError, match=r"CALIB-TEXT.*refuses set-3") as caught:
        make_samples([chat], folder, VOCAB_SIZE, SampleOptions())
    assert said in caught.value.cause and str(folder) == caught.value.where


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_texts(tmp_path / "none.jsonl")


def test_a_tiny_set_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"CALIB-TINY.*has 2 tokens in 1 samples"):
        make_samples([CalibrationText("t", token_ids=(5, 6))], folder, VOCAB_SIZE, SampleOptions())
    with pytest.raises(InputError, match="CALIB-EMPTY"):
        make_samples([], folder, VOCAB_SIZE, SampleOptions())


@pytest.mark.parametrize("wrong", [31000, VOCAB_SIZE, -1])
def test_ids_of_another_tokenizer_are_refused(wrong: int, folder: Path) -> None:
    foreign = CalibrationText("foreign", token_ids=(5, wrong) * 100)
    with pytest.raises(InputError, match=f"CALIB-TOKENIZER: foreign holds the token id {wrong},") as caught:
        make_samples([foreign], folder, VOCAB_SIZE, SampleOptions())
    assert "tokenizer of this checkpoint" in caught.value.fix


def test_a_text_that_the_tokenizer_does_not_know_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="100 of 200 tokens are unknown"):
        make_samples([CalibrationText("t", "a b " * 100)], tmp_path, 2, SampleOptions())


def test_samples_end_where_the_positions_of_the_model_do() -> None:
    assert SampleOptions(max_len=512).within(256).max_len == 256
    assert SampleOptions(max_len=64).within(256).max_len == 64


def test_jsonl_is_known_by_its_ending_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "SET.JSONL").write_text('{"token_ids": [5, 6]}\n')
    assert read_texts(tmp_path / "SET.JSONL")[0].token_ids == (5, 6)


@pytest.mark.parametrize("messages", ["5", '"hi"', "[1]", '{"role": "user"}', '[{"role": "user"}]'])
def test_messages_of_another_shape_are_refused_in_words(messages: str, tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text(f'{{"messages": {messages}}}')
    with pytest.raises(InputError, match='"messages" is a list of'):
        read_texts(tmp_path / "set.jsonl")


CHAT = '{"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "h\u00e9llo"}]}'
# Odd forms of lines, most of them of chats.
LINES = {
    "chat": CHAT, "extra": '{"messages": [{"role": "user", "content": "x", "name": "y"}]}',
    "empty content": '{"messages": [{"role": "user", "content": ""}]}',
    "parts": '{"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}',
    "null content": '{"messages": [{"role": "user", "content": null}]}', "no content": '{"messages": [{"role": "a"}]}',
    "role": '{"messages": [{"role": 1, "content": "x"}]}', "no turns": '{"messages": []}',
    "object": '{"messages": {}}', "null": '{"messages": null}', "both": '{"text": "x", "messages": []}',
    "mark": f"\ufeff{CHAT}", "marks": f"\ufeff\ufeff{CHAT}", "crlf": f"{CHAT}\r\n\r\n{CHAT}\r\n",
    "cr": f"{CHAT}\r{CHAT}",
    "blank": f"\n \t\n{CHAT}\n\n", "separator": '{"text": "a\u2028b\x85c"}', "control": '{"text": "a\x00b"}',
    "surrogate": r'{"messages": [{"role": "user", "content": "\ud800"}]}', "pair": r'{"text": "\ud83d\ude00"}',
    "long": json.dumps({"messages": [{"role": "user", "content": "word " * 400_000}]}), "array": f"[{CHAT}]",
    "comma": f"{CHAT},", "two": CHAT + CHAT, "form feed": f"{CHAT}\x0c", "white": '{"text": "  "}',
    "zero": '{"text": 0}',
    "deep": '{"messages": ' + "[" * 100_000,
    "aiperf": f'{{"data": [{{"session_id": "s",\n "payloads": [{CHAT[:-1]}, "max_tokens": 9}}, {{"prompt": "x"}}]}}]}}',
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
@pytest.mark.parametrize("form", LINES)
def test_a_file_is_taken_as_the_prompts_of_a_verification_or_refused_by_both(
    form: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"set.{suffix}"
    path.write_bytes(LINES[form].encode())
    asked = _taken(lambda: [(prompt.text, prompt.messages) for prompt in read_prompts(path)])
    assert _taken(lambda: [(text.text, text.messages) for text in read_texts(path)]) == asked
    assert (asked is not None) == ((suffix == "json") == (form == "aiperf") and form not in REFUSED)


REFUSED = {"parts", "null content", "no content", "role", "no turns", "object", "null", "both", "marks", "control"}
REFUSED |= {"surrogate", "array", "comma", "two", "form feed", "zero", "deep"}


def _taken(read: Callable[[], list[tuple[str | None, tuple[tuple[str, str], ...]]]]) -> object:
    try:
        return read()
    except InputError:
        return None


def test_a_huge_value_is_named_in_short(tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": ["x" * 10_000]}]}))
    with pytest.raises(InputError, match="is not a string") as caught:
        read_texts(tmp_path / "set.jsonl")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("a\n\nb", ["a", "b"]), ("a\n  \t\nb", ["a", "b"]), ("a\r\n\r\nb\r\n", ["a", "b"]),
        ("\n\n\na\n\n\n\nb\n", ["a", "b"]),
        ("  a\n b\n\n", ["  a\n b"]), ("a\n\nb\n---\nc", ["a\n\nb", "c"]), ("---\na\n---  \n\nb\n---", ["a", "b"]),
        ("a --- b\n----\n\nc", ["a --- b\n----", "c"]),
    ],
)  # fmt: skip
def test_texts_are_parted_by_empty_lines_or_by_dashes(content: str, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "set.txt").write_bytes(content.encode())
    assert [text.text for text in read_texts(tmp_path / "set.txt")] == texts
