"""Chat templates: rendered in a sandbox, with clear refusals."""

import datetime
import json
from pathlib import Path

import pytest
from trtkit.errors import InputError, RequestError
from trtkit.serving.chat_template import ChatTemplate, messages_of

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def render(folder: Path, content: str = "hi") -> str:
    return ChatTemplate.load(folder).render([{"role": "user", "content": content}], NOW)


def config(folder: Path, **values: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", **values}))


def test_the_template_of_the_config_is_used(tmp_path: Path) -> None:
    config(tmp_path, chat_template=TEMPLATE)
    assert render(tmp_path) == "<s>[user]hi[assistant]"


def test_the_file_wins_over_the_config(tmp_path: Path) -> None:
    config(tmp_path, chat_template="other")
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    assert render(tmp_path) == "<s>[user]hi[assistant]"


def test_the_default_of_several_templates_is_used(tmp_path: Path) -> None:
    config(tmp_path, chat_template=[{"name": "tools", "template": "no"}, {"name": "default", "template": TEMPLATE}])
    assert render(tmp_path) == "<s>[user]hi[assistant]"


def test_templates_know_the_date_they_are_given(tmp_path: Path) -> None:
    config(tmp_path, chat_template="{{ strftime_now('%Y-%m-%d') }}")
    assert render(tmp_path) == "2026-01-02"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}", "hi"),
        ("{% for m in messages %}{% generation %}{{ m.content }}!{% endgeneration %}{% endfor %}", "hi!"),
        ("{{ messages[0].content | tojson(indent=2) }}{{ '<é>' | tojson(ensure_ascii=True) }}", '"hi""<\\u00e9>"'),
        ("{% if tools is not none or documents is not none %}tools{% endif %}.", "."),
        ("{{ bos_token is defined }}{{ eos_token is defined }}", "TrueFalse"),
    ],
)
def test_templates_find_what_transformers_offers_them(template: str, text: str, tmp_path: Path) -> None:
    config(tmp_path, chat_template=template)
    assert render(tmp_path) == text


def test_a_template_that_refuses_says_why(tmp_path: Path) -> None:
    config(tmp_path, chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InputError, match=r"CHAT-TEMPLATE: .*roles must alternate"):
        render(tmp_path)


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ messages + 1 }}", "{{ range(9**9) }}", "{{ 'x'.index('y') }}"])
def test_a_template_that_fails_is_named(template: str, tmp_path: Path) -> None:
    config(tmp_path, chat_template=template)
    with pytest.raises(InputError, match=r"CHAT-TEMPLATE: .*the chat template fails: \w+Error"):
        render(tmp_path)


@pytest.mark.parametrize("template", [[1], [{}], [{"name": "default"}], [{"name": []}], {}, 5])
def test_an_entry_that_is_no_template_is_refused(template: object, tmp_path: Path) -> None:
    config(tmp_path, chat_template=template, eos_token={})
    with pytest.raises(InputError, match="no chat template"):
        render(tmp_path)


def test_a_template_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"chat_template\.jinja"):
        render(tmp_path)


def test_a_template_cannot_leave_the_sandbox(tmp_path: Path) -> None:
    config(tmp_path, chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InputError, match="CHAT-TEMPLATE"):
        render(tmp_path)


def test_a_tokenizer_without_a_template_is_refused(tmp_path: Path) -> None:
    config(tmp_path)
    with pytest.raises(InputError, match="no chat template"):
        render(tmp_path)


def test_a_template_that_is_no_jinja_is_named(tmp_path: Path) -> None:
    config(tmp_path, chat_template="{% if %}")
    with pytest.raises(InputError, match="CHAT-TEMPLATE"):
        render(tmp_path)


def test_a_text_is_one_message_and_a_json_list_is_a_history() -> None:
    history = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]
    assert messages_of(json.dumps(history)) == history
    assert messages_of(json.dumps(history, indent=2)) == history
    assert messages_of("[1] is a footnote") == [{"role": "user", "content": "[1] is a footnote"}]


def test_a_content_may_be_parts_of_text() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert messages_of(json.dumps([{"role": "user", "content": parts}])) == [{"role": "user", "content": "one two"}]


@pytest.mark.parametrize(
    "text",
    ['[{"role": "user", "content": null}]', '[{"role": 1, "content": "hi"}]',
     '[{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]',
     '[{"role": "user", "content": {"a": 1}}]',
     '[{"role": "user"}]', '[{"role": "user", "content": "hi"}', '[{"a": 1}, 2]',
     r'[{"role": "user", "content": "\ud800"}]', '[{"a": ' * 2000],
    ids=["null", "number", "image", "object", "role alone", "cut off", "numbers", "surrogate", "deep"],
)  # fmt: skip
def test_a_list_of_no_messages_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(RequestError, match=r"(?s)REQ-CHAT: input text_input.*\[{\"role\""):
        messages_of(text)
