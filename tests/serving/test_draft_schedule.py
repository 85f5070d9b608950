"""The tuned draft length by load: which step holds, when the file counts, and how it bounds another length."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from trtkit.acceptance import Acceptance
from trtkit.draft_length import AdaptiveDraftLength, FixedDraftLength
from trtkit.errors import InputError
from trtkit.serving.draft_schedule import (
    FILE,
    DraftSchedule,
    ScheduledDraftLength,
    Step,
    WatchedSchedule,
    read_schedule,
    schedule_document,
)

SCHEDULE = DraftSchedule((Step(1, 4), Step(4, 2), Step(8, 0)))
INPUTS = {"target": "t1", "draft": "d1"}


@pytest.fixture
def build(tmp_path: Path) -> Path:
    inputs = {role: {"digest": digest} for role, digest in INPUTS.items()}
    (tmp_path / "manifest.json").write_text(json.dumps({"inputs": inputs}))
    return tmp_path


def write(build: Path, document: Any, *, age_s: int = 0) -> None:
    path = build / FILE
    path.write_text(json.dumps(document))
    os.utime(path, ns=(10**18 - age_s * 10**9, 10**18 - age_s * 10**9))


def test_the_step_that_covers_the_load_holds_and_the_last_one_beyond() -> None:
    assert [SCHEDULE.draft_len(load) for load in (0, 1, 2, 4, 5, 8, 100)] == [4, 4, 2, 2, 0, 0, 0]


def test_what_is_written_is_read(build: Path) -> None:
    write(build, schedule_document(SCHEDULE, INPUTS))
    assert read_schedule(build) == SCHEDULE


def test_a_build_without_the_file_has_no_schedule(build: Path) -> None:
    assert read_schedule(build) is None


def test_a_schedule_of_other_checkpoints_does_not_count(build: Path) -> None:
    write(build, schedule_document(SCHEDULE, {**INPUTS, "draft": "d2"}))
    assert read_schedule(build) is None


FALLING = [{"up_to": 4, "draft_len": 1}, {"up_to": 1, "draft_len": 2}]
NEGATIVE = [{"up_to": 1, "draft_len": -1}]


@pytest.mark.parametrize(
    "change", [{"schema": "other"}, {"steps": []}, {"steps": FALLING}, {"steps": NEGATIVE}, {"steps": None}], ids=str
)
def test_a_file_that_is_no_schedule_is_named(change: dict[str, Any], build: Path) -> None:
    write(build, schedule_document(SCHEDULE, INPUTS) | change)
    with pytest.raises(InputError, match=f"(?s)DRAFT-SCHEDULE.*{FILE}"):
        read_schedule(build)


def test_a_changed_file_counts_at_once_and_a_spoilt_one_not(build: Path) -> None:
    watched = WatchedSchedule(build)
    assert watched.current() is None
    write(build, schedule_document(SCHEDULE, INPUTS), age_s=2)
    assert watched.current() == SCHEDULE
    write(build, {}, age_s=1)
    assert watched.current() == SCHEDULE
    (build / FILE).unlink()
    assert watched.current() is None


def test_the_load_is_asked_before_every_step() -> None:
    load = 1
    length = ScheduledDraftLength(FixedDraftLength(3), SCHEDULE, lambda: load)
    assert length.next() == 3  # the build's own limit
    load = 3
    assert length.next() == 2
    load = 6
    assert (length.next(), length.plain_tokens()) == (0, 32)


def test_an_adaptive_length_below_the_schedule_stands_and_learns() -> None:
    adaptive = AdaptiveDraftLength(4)
    length = ScheduledDraftLength(adaptive, SCHEDULE, lambda: 1)
    length.observe_plain(1, 1_000_000)
    length.observe_plain(8, 8 * 9_000)
    for _ in range(20):
        length.observe_draft(Acceptance(4, (1,)), 4_000, 10_000)
    length.next()  # the probe that follows a stretch without drafts
    assert length.next() == adaptive.next() == 0


def test_a_schedule_that_says_off_leaves_the_probe_for_later() -> None:
    adaptive = AdaptiveDraftLength(4)
    for observe in (lambda: adaptive.observe_plain(1, 100), lambda: adaptive.observe_plain(20_000, 20_000 * 9_000)):
        observe()
    for _ in range(20):
        adaptive.observe_draft(Acceptance(4, (1,)), 4_000, 10_000)
    assert ScheduledDraftLength(adaptive, SCHEDULE, lambda: 8).next() == 0
    assert adaptive.next() == 1  # the probe is still due
