"""Text and tokens: exactly one BOS, and streamed text that equals the whole text for every chunking."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from trtkit.errors import CheckpointError
from trtkit.serving.text import TextTokenizer

HARD_STRINGS = (
    "The fastest way home",
    "  two spaces\tand a tab\n\n    indented",
    "日本語のテキスト、中文字符。한국어",
    "family 👩‍👩‍👧‍👦 flag 🏴󠁧󠁢󠁳󠁣󠁴󠁿 skin 👍🏽",
    "combining e\u0301a\u0308\u0323 and z\u0336a\u0336",
    "مرحبا بالعالم — עברית — Ελληνικά",
    "def f(x):\n\treturn {'a': x**2, \"b\": [1, 2]}  # ☃",
    "a real replacement character: \ufffd, kept",
    "\u200bzero width\u200d joiners\ufeff",
)


def sentencepiece_tokenizer(folder: Path) -> Path:
    """A Llama-2-like tokenizer: a space before every text, byte pieces for what has no piece, BOS in front."""
    words = ["\u2581", "\u2581The", "\u2581fast", "est", "\u2581way", "a", "e", "s", "t", "h", "o", "m", "\u2581two"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "add_bos_token": True}))
    return folder


@pytest.fixture(scope="module", params=["byte level", "sentencepiece"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    return tiny_tokenizer(path) if request.param == "byte level" else sentencepiece_tokenizer(path)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer.load(folder)


@pytest.mark.parametrize("text", HARD_STRINGS)
def test_decoding_gives_the_text_back_as_the_library_does(tokenizer: TextTokenizer, folder: Path, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).decode(ids) == text


@pytest.mark.parametrize("text", HARD_STRINGS)
@pytest.mark.parametrize("size", range(1, 7))
def test_streamed_text_is_the_whole_text_for_every_chunk_size(tokenizer: TextTokenizer, text: str, size: int) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    stream = tokenizer.stream(skip_special_tokens=True)
    pieces = [stream.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    assert "".join((*pieces, stream.finish())) == text
    assert all(piece.count("\ufffd") <= text.count("\ufffd") for piece in pieces)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_tokens_in_any_chunks_give_one_text(tokenizer: TextTokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 330), max_size=24))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    stream = tokenizer.stream(skip_special_tokens=True)
    chunks = [ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    pieces = [stream.push(chunk) for chunk in chunks]
    assert "".join((*pieces, stream.finish())) == tokenizer.decode(ids, skip_special_tokens=True)


def test_half_a_character_is_held_back_until_it_is_whole(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(tiny_tokenizer(tmp_path))
    ids = tokenizer.encode("日", add_special_tokens=False)
    stream = tokenizer.stream(skip_special_tokens=True)
    assert len(ids) == 3
    assert [stream.push([token]) for token in ids] == ["", "", "日"]


def test_an_answer_that_ends_inside_a_character_has_one_replacement_character_at_its_end(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(tiny_tokenizer(tmp_path))
    ids = tokenizer.encode("a日", add_special_tokens=False)[:-1]
    stream = tokenizer.stream(skip_special_tokens=True)
    assert (stream.push(ids), stream.finish()) == ("a", "\ufffd")


def test_special_tokens_are_skipped_only_when_asked(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(tiny_tokenizer(tmp_path))
    ids = [1, *tokenizer.encode("a", add_special_tokens=False), 2]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>a</s>"


def test_ids_beyond_the_tokenizer_are_no_text(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(tiny_tokenizer(tmp_path))
    assert tokenizer.decode([5000, -1], skip_special_tokens=True) == ""


@pytest.mark.parametrize("prompt", ["way", "<s>way", "<s> way"])
def test_a_prompt_gets_exactly_one_bos(tmp_path: Path, prompt: str) -> None:
    ids = TextTokenizer.load(sentencepiece_tokenizer(tmp_path)).encode(prompt, add_special_tokens=True)
    assert ids[0] == 1
    assert ids.count(1) == 1


def test_a_tokenizer_without_bos_gets_none(tmp_path: Path) -> None:
    ids = TextTokenizer.load(tiny_tokenizer(tmp_path)).encode("way", add_special_tokens=True)
    assert 1 not in ids


def test_bos_is_added_where_only_the_config_asks_for_it(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": "<s>"}, "add_bos_token": True})
    )
    tokenizer = TextTokenizer.load(tmp_path)
    assert tokenizer.encode("a", add_special_tokens=True)[0] == 1
    assert 1 not in tokenizer.encode("a", add_special_tokens=False)


def test_a_stop_word_is_encoded_with_and_without_a_space_and_never_with_bos(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(sentencepiece_tokenizer(tmp_path))
    spellings = tokenizer.encode_word("way")
    assert len(spellings) == 2
    assert all(1 not in ids for ids in spellings)


def test_a_folder_without_a_fast_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"TOKENIZER-FILE: .*tokenizer\.json"):
        TextTokenizer.load(tmp_path)


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(CheckpointError, match="TOKENIZER-FILE"):
        TextTokenizer.load(tmp_path)


def test_a_decoder_that_cannot_stream_is_refused(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    document["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="TOKENIZER-DECODER"):
        TextTokenizer.load(tmp_path)
