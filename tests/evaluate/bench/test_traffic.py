"""Prompts and traces in aiperf's lines: what is read, what is written, and what cannot be sent."""

import json
from pathlib import Path

import pytest
from trtkit.errors import InputError
from trtkit.evaluate.bench.plan import BenchPrompt
from trtkit.evaluate.bench.traffic import prompts_jsonl, read_trace, trace_jsonl
from trtkit.prompts.files import Prompt, read_prompts

PROMPTS = (BenchPrompt("Grüße\u2028!", 8), BenchPrompt("b", 4))


def trace(folder: Path, *rows: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def test_a_trace_is_read_in_the_order_of_its_times_from_the_first(tmp_path: Path) -> None:
    path = trace(
        tmp_path,
        {"timestamp": 1500, "text_input": "later", "output_length": 99},
        {"timestamp": 1000, "text": "first", "output_length": 4},
    )
    assert read_trace(path, 16) == [BenchPrompt("first", 4, "trace", 0.0), BenchPrompt("later", 16, "trace", 0.5)]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(trace_jsonl(PROMPTS, [0.0, 0.25]))
    assert [(p.text, p.max_new_tokens, p.at_s) for p in read_trace(tmp_path / "t.jsonl", 99)] == [
        (PROMPTS[0].text, 8, 0.0),
        ("b", 4, 0.25),
    ]
    (tmp_path / "p.jsonl").write_text(prompts_jsonl(PROMPTS))
    assert [(p.text, p.output_length) for p in read_prompts(tmp_path / "p.jsonl")] == [(PROMPTS[0].text, 8), ("b", 4)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"input_length": 10, "hash_ids": [1]}, "needs one of"),
        ({"text": "a", "text_input": "b"}, "needs one of"),
        ({"text": ""}, "needs one of"),
        ({"text": "a", "hash_ids": [1]}, "hash_ids is nothing that can be sent"),
        ({"text": "a", "timestamp": -1}, "between 0 and 1e\\+14"),
        ({"text": "a", "timestamp": float("nan")}, "between 0 and"),
        ({"text": "a", "timestamp": float("inf")}, "between 0 and"),
        ({"text": "a", "timestamp": 1e30}, "between 0 and"),
        ({"text": "a", "timestamp": "1"}, "between 0 and"),
        ({"text": "a", "output_length": 0}, "whole number from 1"),
        ({"text": "a", "output_length": 1.5}, "whole number from 1"),
        ({"text": "a", "output_length": float("inf")}, "whole number from 1"),
        ({"text": "\ud800"}, "surrogates not allowed"),
        ([1], "not a request"),
    ],
    ids=str,
)
def test_a_line_that_cannot_be_sent_is_named(row: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"(?s)trace.jsonl:2.*{said}"):
        read_trace(trace(tmp_path, {"text": "fine"}, row), 8)


def test_a_missing_or_empty_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the trace"):
        read_trace(tmp_path / "none.jsonl", 8)
    with pytest.raises(InputError, match="holds no request"):
        read_trace(trace(tmp_path), 8)


def test_the_length_of_an_answer_does_not_make_another_prompt() -> None:
    assert Prompt("a", "g", "text").key == Prompt("a", "g", "text", output_length=9).key
