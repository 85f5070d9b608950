"""Shipped suites and users' prompt files."""

import json
from pathlib import Path

import pytest
from trtkit.errors import InputError
from trtkit.prompts.files import GROUPS, Prompt, choose_prompts, read_prompts, shipped_prompts


def test_the_shipped_suites_hold_at_least_24_prompts_with_distinct_names() -> None:
    prompts = shipped_prompts()
    assert len(prompts) >= 24
    assert len({prompt.name for prompt in prompts}) == len({prompt.key for prompt in prompts}) == len(prompts)


def test_the_first_few_prompts_hold_one_of_every_group() -> None:
    assert [prompt.group for prompt in choose_prompts(None, len(GROUPS))] == list(GROUPS)


def test_prompts_of_the_repeat_group_share_a_long_beginning() -> None:
    texts = [prompt.text or "" for prompt in shipped_prompts() if prompt.group == "repeat"]
    assert len(texts) >= 3 and len({text[:200] for text in texts}) == 1


def test_a_text_file_holds_one_prompt_a_line_and_blank_lines_are_no_prompts(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("one\n\ntwo\n", encoding="utf-8")
    assert read_prompts(path) == [Prompt("mine-1", "mine", text="one"), Prompt("mine-3", "mine", text="two")]


def test_a_jsonl_file_holds_texts_and_chats(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "a"}\n{"name": "b", "group": "g", "messages": [{"role": "user", "content": "hi"}]}\n')
    assert read_prompts(path) == [
        Prompt("mine-1", "mine", text="a"),
        Prompt("b", "g", messages=(("user", "hi"),)),
    ]


def test_a_line_separator_inside_a_json_string_ends_no_prompt(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "a\u2028b"}\n', encoding="utf-8")
    assert [prompt.text for prompt in read_prompts(path)] == ["a\u2028b"]


def test_marks_and_line_ends_of_other_systems_are_no_part_of_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    (tmp_path / "mine.JSONL").write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n')
    assert [prompt.text for prompt in read_prompts(tmp_path / "mine.txt")] == ["one", "two"]
    assert [prompt.text for prompt in read_prompts(tmp_path / "mine.JSONL")] == ["one"]


def test_only_a_line_end_ends_a_prompt_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("a\x0cb\u2028c\x85d\ne\n", encoding="utf-8")
    assert [prompt.text for prompt in read_prompts(path)] == ["a\x0cb\u2028c\x85d", "e"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no prompt"),
        ("{", "not a prompt"),
        ('{"prompt": "a"}', "unknown key prompt"),
        ('{"text": "a", "messages": []}', "not both"),
        ('{"text": ""}', "empty"),
        ('{"messages": [{"role": "user"}]}', "content"),
        ('{"text": 5}', "not a string"),
        ("[1]", "not a prompt"),
        ("[" * 100_000, "not a prompt"),
        ('{"messages": {"role": "user"}}', "is a list"),
        ('{"messages": ["hi"]}', "is a list"),
        (r'{"text": "\ud800"}', "half of a surrogate pair"),
        (r'{"name": "a\ud800", "text": "a"}', "half of a surrogate pair"),
        (r'{"name": "a\u0000", "text": "a"}', "control characters"),
        (r'{"name": "a\nb", "text": "a"}', "control characters"),
        (r'{"group": "a\u001bb", "text": "a"}', "control characters"),
        ('{"name": "x", "text": "a"}\n{"name": "x", "text": "b"}', "two prompts are named x"),
    ],
)
def test_a_file_that_holds_no_prompts_is_refused(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_prompts(path)


def test_names_may_be_of_any_script_and_hold_any_symbol(tmp_path: Path) -> None:
    path, name = tmp_path / "mine.jsonl", "\U0001f468\u200d\U0001f469 | <b> \u05d0\u202e [/red] `"
    path.write_text(json.dumps({"name": name, "text": "a"}))
    assert [prompt.name for prompt in read_prompts(path)] == [name]


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl"):
        read_prompts(tmp_path / "none.jsonl")


def test_the_key_of_a_prompt_follows_its_content() -> None:
    one, other = Prompt("n", "g", text="a"), Prompt("n", "g", text="b")
    assert one.key != other.key
    assert one.key == Prompt("n", "g", text="a").key
