"""Draft length by load, as `trtkit tune` measured it: the file in the build, and its use. Knows no model, no clock."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.acceptance import Acceptance
from trtkit.draft_length import DraftLength
from trtkit.errors import InputError

SCHEMA = "trtkit.draft-schedule/1"
FILE = "draft_schedule.json"
MANIFEST = "manifest.json"
_PLAIN_STRETCH_TOKENS = 32


@dataclass(frozen=True)
class Step:
    """Up to so many answers under way at once, this draft length; 0 is speculation off."""

    up_to: int
    draft_len: int


@dataclass(frozen=True)
class DraftSchedule:
    """Steps by rising load; the last one holds beyond its own load too."""

    steps: tuple[Step, ...]

    def draft_len(self, load: int) -> int:
        """The length for `load` answers under way."""
        return next((step.draft_len for step in self.steps if load <= step.up_to), self.steps[-1].draft_len)


def schedule_document(schedule: DraftSchedule, inputs: Mapping[str, str]) -> dict[str, Any]:
    """The file's content. inputs: role -> digest of the checkpoint that the measured build was made from."""
    steps = [{"up_to": step.up_to, "draft_len": step.draft_len} for step in schedule.steps]
    return {"schema": SCHEMA, "steps": steps, "inputs": dict(inputs)}


def input_digests(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Role -> digest of the checkpoints that a build was made from."""
    return {role: str(entry["digest"]) for role, entry in manifest.get("inputs", {}).items()}


def read_schedule(build: Path) -> DraftSchedule | None:
    """The schedule of a build directory; None without one, and for one that was measured on other checkpoints.

    Raises InputError for a file that is no schedule.
    """
    path = build / FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']!r}, this version reads {SCHEMA!r}")
        steps = tuple(Step(int(row["up_to"]), int(row["draft_len"])) for row in document["steps"])
        loads = [step.up_to for step in steps]
        if not steps or loads != sorted(set(loads)) or min(step.draft_len for step in steps) < 0:
            raise ValueError("steps must have rising loads and lengths from 0")
        inputs = document["inputs"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"not a draft schedule: {type(error).__name__} {error}",
            "run trtkit tune again, or remove the file",
            code="DRAFT-SCHEDULE",
            where=str(path),
        ) from None
    return DraftSchedule(steps) if inputs == _manifest_digests(build) else None


def _manifest_digests(build: Path) -> dict[str, str]:
    try:
        return input_digests(json.loads((build / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


class WatchedSchedule:
    """The schedule of a build directory, read again when the file changes, so that tuning needs no restart."""

    def __init__(self, build: Path) -> None:
        self._build = build
        self._stamp = self._stat()
        self._schedule = read_schedule(build)

    def current(self) -> DraftSchedule | None:
        """What holds now. A file that was spoilt by hand leaves the schedule before it in force."""
        stamp = self._stat()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._schedule = read_schedule(self._build)
            except InputError:
                pass
        return self._schedule

    def _stat(self) -> tuple[int, int] | None:
        try:
            stat = (self._build / FILE).stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size


class ScheduledDraftLength:
    """Another draft length, held to what the schedule allows for the answers that are under way at each step."""

    def __init__(self, inner: DraftLength, schedule: DraftSchedule, load: Callable[[], int]) -> None:
        self._inner = inner
        self._schedule = schedule
        self._load = load

    def next(self) -> int:
        """The smaller of the two. At 0 the inner length is not asked: it would count a probe as made."""
        allowed = self._schedule.draft_len(self._load())
        return min(allowed, self._inner.next()) if allowed else 0

    def plain_tokens(self) -> int | None:
        """A stretch short enough that drafting comes back soon after the load has gone."""
        return min(_PLAIN_STRETCH_TOKENS, self._inner.plain_tokens() or _PLAIN_STRETCH_TOKENS)

    def observe_draft(self, outcome: Acceptance, draft_ns: int, target_ns: int) -> None:
        """Passed on."""
        self._inner.observe_draft(outcome, draft_ns, target_ns)

    def observe_plain(self, num_tokens: int, elapsed_ns: int) -> None:
        """Passed on."""
        self._inner.observe_plain(num_tokens, elapsed_ns)
