"""Makes a parity record: asks the oracle every prompt once, and no prompt twice. Knows no deployment."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtkit.errors import InputError, RequestError
from trtkit.evaluate.oracle import EncodedPrompt, Oracle
from trtkit.evaluate.prompts import Prompt
from trtkit.evaluate.record import (
    ParityRecord,
    RecordedAnswer,
    RecordHeader,
    RecordJournal,
    SkippedPrompt,
    read_record,
    write_record,
)
from trtkit.progress import OnProgress, Progress, silent


@dataclass(frozen=True)
class RecordRequest:
    """What to ask, of which checkpoint; max_input_len is the longest prompt that the deployment takes."""

    checkpoint: str
    digest: str
    prompts: Sequence[Prompt]
    end_ids: tuple[int, ...]
    max_new_tokens: int
    max_input_len: int | None = None


def make_record(oracle: Oracle, request: RecordRequest, path: Path, on_progress: OnProgress = silent) -> ParityRecord:
    """Record the oracle's answers at `path`; answers that stand there under the same header are kept.

    Prompts the checkpoint cannot take (chat without a template, too long) are left out and listed. Raises InputError
    when nothing is left, BuildError when the disk is full.
    """
    header = _header(oracle, request)
    encoded, skipped = _encode(oracle, request)
    journal = RecordJournal(path, header)
    known = _standing_answers(path, header) | journal.answers
    answers = []
    for done, (prompt, sent) in enumerate(encoded):
        on_progress(Progress("oracle", done, len(encoded), "prompts"))
        answer = known.get(prompt.key)
        if answer is None:
            answer = _ask(oracle, prompt, sent, header)
            journal.append(answer)
        answers.append(answer)
    on_progress(Progress("oracle", len(encoded), len(encoded), "prompts"))
    record = ParityRecord(header, tuple(answers), tuple(skipped))
    write_record(path, record)
    journal.close()
    return record


def _header(oracle: Oracle, request: RecordRequest) -> RecordHeader:
    return RecordHeader(
        checkpoint=request.checkpoint,
        digest=request.digest,
        dtype=oracle.dtype,
        weights_dtype=oracle.weights_dtype,
        num_layers=oracle.num_layers,
        hidden_size=oracle.hidden_size,
        vocab_size=oracle.vocab_size,
        max_row_norm=oracle.max_row_norm,
        end_ids=request.end_ids,
        max_new_tokens=request.max_new_tokens,
        versions=oracle.versions,
    )


def _encode(oracle: Oracle, request: RecordRequest) -> tuple[list[tuple[Prompt, EncodedPrompt]], list[SkippedPrompt]]:
    encoded, skipped = [], []
    for prompt in request.prompts:
        try:
            sent = oracle.encode(prompt)
            _refuse_long(prompt, sent, request.max_input_len)
        except RequestError as error:
            skipped.append(SkippedPrompt(prompt.name, prompt.key, error.cause))
        else:
            encoded.append((prompt, sent))
    if not encoded:
        reasons = "; ".join(f"{entry.name}: {entry.reason}" for entry in skipped[:3])
        raise InputError(f"no prompt can be asked ({reasons})", "give other prompts with --prompts", code="PROMPTS")
    return encoded, skipped


def _refuse_long(prompt: Prompt, sent: EncodedPrompt, max_input_len: int | None) -> None:
    if max_input_len is not None and len(sent.prompt_ids) > max_input_len:
        raise RequestError(
            f"{prompt.name} has {len(sent.prompt_ids)} tokens, the deployment takes {max_input_len}",
            "shorten it, or build with a larger limits.max_input_len",
        )


def _standing_answers(path: Path, header: RecordHeader) -> dict[str, RecordedAnswer]:
    """The answers of an earlier record with the same header; none when there is no such record."""
    try:
        record = read_record(path)
    except InputError:
        return {}
    return {answer.prompt_key: answer for answer in record.answers} if record.header == header else {}


def _ask(oracle: Oracle, prompt: Prompt, sent: EncodedPrompt, header: RecordHeader) -> RecordedAnswer:
    steps = list(oracle.answer(sent.prompt_ids, header.max_new_tokens, header.end_ids))
    token_ids = tuple(token for token, _ in steps)
    return RecordedAnswer(
        name=prompt.name,
        group=prompt.group,
        prompt_key=prompt.key,
        text=sent.text,
        prompt_ids=sent.prompt_ids,
        token_ids=token_ids,
        finish_reason="end_id" if token_ids[-1] in header.end_ids else "length",
        steps=tuple(step for _, step in steps),
    )
