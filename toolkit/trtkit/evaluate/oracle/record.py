"""The parity record: the oracle's answers as a JSON file, written prompt by prompt. Knows no model."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, get_args

from trtkit.artifacts import disk_error, write_text
from trtkit.errors import InputError
from trtkit.evaluate.oracle.rolling import RollingRule
from trtkit.evaluate.oracle.tolerance import Dtype

SCHEMA = "trtkit.parity-record/3"


@dataclass(frozen=True)
class OracleStep:
    """The oracle's view of one greedy step: its k best tokens, best first.

    gaps[i] is the best logit minus the logit of token_ids[i], distances[i] the distance between the two rows of the
    head; state_norm is the length of the state that enters the head; best_log_prob is the best token's log-probability.
    """

    best_logit: float
    state_norm: float
    token_ids: tuple[int, ...]
    gaps: tuple[float, ...]
    distances: tuple[float, ...]
    best_log_prob: float

    @property
    def log_probs(self) -> tuple[float, ...]:
        """Natural logarithms of the k best tokens' probabilities."""
        return tuple(self.best_log_prob - gap for gap in self.gaps)

    @property
    def margin(self) -> float:
        """The best logit minus the second best; infinite in a vocabulary of one."""
        return self.gaps[1] if len(self.gaps) > 1 else float("inf")


@dataclass(frozen=True)
class RecordedAnswer:
    """One prompt and the oracle's greedy answer; the answer includes the end token where one was chosen.

    prompt_key names the prompt as it was given, before chat template and tokenizer.
    """

    name: str
    group: str
    prompt_key: str
    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: str
    steps: tuple[OracleStep, ...]


@dataclass(frozen=True)
class RecordHeader:
    """What the answers depend on; two records with equal headers hold comparable answers.

    digest names the checkpoint's content; weights_dtype is the dtype its weights are stored in; max_row_norm is the
    longest row of the head, which bounds the distance between any two rows by twice itself; quantization the format
    that the oracle's own matrices were rounded to; rolling how it dropped tokens, as a deployment without drafts does.
    """

    checkpoint: str
    digest: str
    dtype: Dtype
    weights_dtype: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_row_norm: float
    end_ids: tuple[int, ...]
    max_new_tokens: int
    versions: Mapping[str, str]
    quantization: str = "none"
    rolling: RollingRule | None = None


@dataclass(frozen=True)
class SkippedPrompt:
    """A prompt that the oracle was not asked, and why."""

    name: str
    prompt_key: str
    reason: str

    def as_dict(self) -> dict[str, str]:
        """What reports say of it."""
        return {"name": self.name, "reason": self.reason}


@dataclass(frozen=True)
class ServedFormats:
    """How a deployment computes and stores: the dtype, its cache's where that is coarser, how layers are quantised."""

    dtype: Dtype = "bfloat16"
    kv_dtype: str = "auto"
    quantization: str = "none"


@dataclass(frozen=True)
class ParityRecord:
    """A header, the answers, and the prompts that were left out. Greedy, so there is no seed.

    conditioning is how strongly the weights amplify rounding, measured on these answers (conditioning.py). kv_errors
    and weight_errors are the state errors of coarser caches and of quantised layers by their format, those that were
    measured (rounding_cache.py, rounding_weights.py). formats are those of the build that it was made for.
    """

    header: RecordHeader
    answers: tuple[RecordedAnswer, ...]
    skipped: tuple[SkippedPrompt, ...] = ()
    conditioning: float = 1.0
    kv_errors: Mapping[str, float] = field(default_factory=dict)
    weight_errors: Mapping[str, float] = field(default_factory=dict)
    formats: ServedFormats = field(default_factory=ServedFormats)

    def covers(self, prompt_keys: Iterable[str]) -> bool:
        """Whether each of these prompts is answered here, or was left out for a reason."""
        known = {answer.prompt_key for answer in self.answers} | {left_out.prompt_key for left_out in self.skipped}
        return set(prompt_keys) <= known

    def answers_to(self, prompt_keys: Iterable[str]) -> list[RecordedAnswer]:
        """The answers to these prompts, in their order."""
        known = {answer.prompt_key: answer for answer in self.answers}
        return [known[key] for key in prompt_keys if key in known]


class RecordJournal:
    """Answers on disk as they come, beside the record they will become, so that an interruption loses one prompt.

    A journal that was begun with another header is discarded.
    """

    def __init__(self, record: Path, header: RecordHeader) -> None:
        self.path = record.with_name(f".{record.name}.partial")
        self._header = json.dumps(asdict(header), sort_keys=True)
        self.answers = self._resume()

    def append(self, answer: RecordedAnswer) -> None:
        """Add one answer; on disk when it returns. Raises BuildError when the disk is full."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(answer)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_error(error, self.path) from error
        self.answers[answer.prompt_key] = answer

    def close(self) -> None:
        """The record is written; the journal is no longer needed."""
        self.path.unlink(missing_ok=True)

    def _resume(self) -> dict[str, RecordedAnswer]:
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.is_file() else ""
        head, *lines = text.split("\n")
        whole = list(_readable(lines[:-1])) if head == self._header else []  # the last line was cut off, or is empty
        self._start([line for line, _ in whole])
        return {answer.prompt_key: answer for _, answer in whole}

    def _start(self, lines: list[str]) -> None:
        try:
            write_text(self.path, "".join(f"{line}\n" for line in (self._header, *lines)))
        except OSError as error:
            raise disk_error(error, self.path) from error


def _readable(lines: Iterable[str]) -> Iterator[tuple[str, RecordedAnswer]]:
    """Lines with their answers, up to the first that holds none: a machine that went down leaves such."""
    for line in lines:
        try:
            yield line, _answer_of(json.loads(line))
        except (ValueError, KeyError, TypeError):
            return


def write_record(path: Path, record: ParityRecord) -> None:
    """Write the record whole or not at all. Raises BuildError when the disk is full."""
    document = {
        "schema": SCHEMA,
        "header": asdict(record.header),
        "conditioning": record.conditioning,
        "kv_errors": dict(record.kv_errors),
        "weight_errors": dict(record.weight_errors),
        "formats": asdict(record.formats),
        "skipped": [asdict(left_out) for left_out in record.skipped],
    }
    # One answer a line: small enough to read with a pager, and a diff names the prompt.
    answers = ",\n".join(json.dumps(asdict(answer)) for answer in record.answers)
    head = json.dumps(document, indent=1).removesuffix("\n}")
    try:
        write_text(path, f'{head},\n "answers": [\n{answers}\n]\n}}\n')
    except OSError as error:
        raise disk_error(error, path) from error


def read_record(path: Path) -> ParityRecord:
    """Read a record. Raises InputError when the file is missing, damaged, or of another schema version."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']!r}, this version reads {SCHEMA!r}")
        answers = tuple(_answer_of(row) for row in document["answers"])
        skipped = tuple(SkippedPrompt(**row) for row in document["skipped"])
        return ParityRecord(
            _header_of(document["header"]),
            answers,
            skipped,
            document["conditioning"],
            dict(document["kv_errors"]),
            dict(document["weight_errors"]),
            ServedFormats(**document["formats"]),
        )
    except OSError as error:
        raise InputError(
            f"cannot read the parity record: {error.strerror}",
            "run trtkit parity record first",
            code="PARITY-RECORD",
            where=str(path),
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"not a parity record: {type(error).__name__} {error}",
            "run trtkit parity record again with this version of trtkit",
            code="PARITY-RECORD",
            where=str(path),
        ) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no figure")


def _header_of(row: Mapping[str, Any]) -> RecordHeader:
    if row["dtype"] not in get_args(Dtype) or type(row["max_new_tokens"]) is not int or row["max_new_tokens"] < 1:
        raise ValueError(f"dtype {row['dtype']!r}, {row['max_new_tokens']!r} tokens")
    rolling = RollingRule(**row["rolling"]) if row["rolling"] is not None else None
    return RecordHeader(**{**row, "end_ids": tuple(row["end_ids"]), "rolling": rolling})


def _answer_of(row: Mapping[str, Any]) -> RecordedAnswer:
    steps = tuple(_step_of(step) for step in row["steps"])
    ids = {key: tuple(row[key]) for key in ("prompt_ids", "token_ids")}
    if len(steps) != len(ids["token_ids"]):
        raise ValueError(f"{row['name']}: {len(steps)} steps for {len(ids['token_ids'])} tokens")
    return RecordedAnswer(**{**row, **ids, "steps": steps})


def _step_of(row: Mapping[str, Any]) -> OracleStep:
    return OracleStep(**{**row, **{key: tuple(row[key]) for key in ("token_ids", "gaps", "distances")}})
