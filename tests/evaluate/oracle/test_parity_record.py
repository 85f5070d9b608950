"""The record file: nothing half-written, nothing asked twice, nothing misread."""

import json
from pathlib import Path

import pytest
from documented_reports import undocumented
from parity_samples import answer, header, step
from trtkit.errors import InputError
from trtkit.evaluate.oracle.record import ParityRecord, RecordJournal, SkippedPrompt, read_record, write_record

A = answer("a", step(10, 9, 5.0), step(2, 9, 0.5))
B = answer("b", step(7, 8, 1.0))
RECORD = ParityRecord(header(), (A, B), (SkippedPrompt("c", "key-c", "too long"),))


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path / "record.json", RECORD)
    assert read_record(tmp_path / "record.json") == RECORD
    assert undocumented(json.loads((tmp_path / "record.json").read_text())) == set()


def test_a_record_covers_the_prompts_it_answers_and_those_it_left_out() -> None:
    assert RECORD.covers(["key-a", "key-c"])
    assert not RECORD.covers(["key-a", "key-d"])


def test_answers_come_in_the_order_asked_for_without_those_left_out() -> None:
    assert RECORD.answers_to(["key-b", "key-c", "key-a"]) == [B, A]


def test_an_interrupted_recording_continues_after_the_last_whole_answer(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    journal = RecordJournal(path, header())
    journal.append(A)
    with journal.path.open("a", encoding="utf-8") as file:
        file.write('{"name": "b", "gro')  # killed while writing
    resumed = RecordJournal(path, header())
    assert resumed.answers == {"key-a": A}
    resumed.append(B)
    assert RecordJournal(path, header()).answers == {"key-a": A, "key-b": B}


def test_a_journal_of_another_checkpoint_is_discarded(tmp_path: Path) -> None:
    RecordJournal(tmp_path / "record.json", header()).append(A)
    assert RecordJournal(tmp_path / "record.json", header(digest="d2")).answers == {}


@pytest.mark.parametrize("line", [b"{nope", b'{"name": "b"}', b"[]", b"3", b"\xff\xfe\x00"])
def test_a_journal_goes_on_before_the_first_line_that_holds_no_answer(line: bytes, tmp_path: Path) -> None:
    journal = RecordJournal(tmp_path / "record.json", header())
    journal.append(A)
    with journal.path.open("ab") as file:
        file.write(line + b"\n" + journal.path.read_bytes().splitlines()[1] + b"\n")
    assert RecordJournal(tmp_path / "record.json", header()).answers == {"key-a": A}


def test_a_journal_of_other_bytes_is_discarded(tmp_path: Path) -> None:
    journal = RecordJournal(tmp_path / "record.json", header())
    journal.path.write_bytes(b"\xff\xfe\x00")
    assert RecordJournal(tmp_path / "record.json", header()).answers == {}


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.update(schema="trtkit.parity-record/0"),
        lambda d: d.pop("answers"),
        lambda d: d["header"].pop("digest"),
        lambda d: d["header"].update(unknown=1),
        lambda d: d["answers"][0]["steps"].pop(),
        lambda d: d["header"].update(dtype="float64"),
        lambda d: d["header"].update(max_new_tokens=0),
        lambda d: d["header"].update(max_new_tokens="12"),
        lambda d: d.update(conditioning=float("nan")),
    ],
)
def test_a_damaged_record_is_refused(damage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "record.json"
    write_record(path, RECORD)
    document = json.loads(path.read_text())
    damage(document)
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="not a parity record"):
        read_record(path)


def test_a_missing_record_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"PARITY-RECORD: .*record\.json: cannot read"):
        read_record(tmp_path / "record.json")
