"""Makes a parity record: asks the oracle every prompt once, and no prompt twice. Knows no deployment."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtkit.errors import InputError, RequestError
from trtkit.evaluate.oracle.batch import answer_batch
from trtkit.evaluate.oracle.conditioning import measure_conditioning
from trtkit.evaluate.oracle.oracle import Oracle
from trtkit.evaluate.oracle.record import (
    OracleStep,
    ParityRecord,
    RecordedAnswer,
    RecordHeader,
    RecordJournal,
    ServedFormats,
    SkippedPrompt,
    write_record,
)
from trtkit.evaluate.oracle.rolling import RollingRule
from trtkit.evaluate.oracle.rounding_cache import measure_kv_error
from trtkit.evaluate.oracle.rounding_weights import measure_weight_error
from trtkit.progress import OnProgress, Progress, silent
from trtkit.prompts.encoding import EncodedPrompt, PromptEncoder
from trtkit.prompts.files import Prompt


@dataclass(frozen=True)
class RecordRequest:
    """What to ask, of which checkpoint.

    max_input_len is the longest prompt that the deployment takes. batch_size prompts are asked at once; 1 is exact,
    more is faster on a GPU and pads (batch.py). formats are the deployment's: what they explain is measured.
    rolling: tokens are dropped by this rule, and such answers are asked for one at a time. standing: an earlier record,
    which is gone on with where it has the same header.
    """

    checkpoint: str
    folder: Path
    digest: str
    prompts: Sequence[Prompt]
    end_ids: tuple[int, ...]
    max_new_tokens: int
    max_input_len: int | None = None
    batch_size: int = 1
    formats: ServedFormats = field(default_factory=ServedFormats)
    rolling: RollingRule | None = None
    standing: ParityRecord | None = None


def make_record(
    oracle: Oracle, encoder: PromptEncoder, request: RecordRequest, path: Path, on_progress: OnProgress = silent
) -> ParityRecord:
    """Write the oracle's answers to `path`, with those of the standing record. What was recorded for another prompt of
    the same name goes: the file it came from was edited.

    Prompts the checkpoint cannot take (chat without a template, too long) are left out and listed. Raises InputError
    when nothing is left, BuildError when the disk is full.
    """
    header = _header(oracle, request)
    encoded, skipped = encode_prompts(encoder, request.prompts, request.max_input_len)
    journal = RecordJournal(path, header)
    standing = request.standing
    if standing is None or standing.header != header:
        standing = ParityRecord(header, ())
    known = {answer.prompt_key: answer for answer in standing.answers} | journal.answers
    known = {key: answer for key, answer in known.items() if _is_current(answer.name, key, request.prompts)}
    missing = [(prompt, sent) for prompt, sent in encoded if prompt.key not in known]
    for start in range(0, len(missing), request.batch_size):
        on_progress(Progress("oracle", len(encoded) - len(missing) + start, len(encoded), "prompts"))
        for answer in _ask(oracle, missing[start : start + request.batch_size], header):
            known[answer.prompt_key] = answer
            journal.append(answer)
    on_progress(Progress("oracle", len(encoded), len(encoded), "prompts"))
    skipped += [
        left_out
        for left_out in standing.skipped
        if left_out.prompt_key not in known.keys() | {entry.prompt_key for entry in skipped}
        and _is_current(left_out.name, left_out.prompt_key, request.prompts)
    ]
    sequences = [((*answer.prompt_ids, *answer.token_ids), len(answer.token_ids)) for answer in known.values()]
    conditioning = measure_conditioning(oracle, request.folder, sequences, on_progress)
    kv_errors, weight_errors = dict(standing.kv_errors), dict(standing.weight_errors)
    kv_dtype, quantization = request.formats.kv_dtype, request.formats.quantization
    if kv_dtype != "auto":
        kv_errors[kv_dtype] = measure_kv_error(oracle, sequences, kv_dtype)
    if quantization not in ("none", oracle.quantization):
        weight_errors[quantization] = measure_weight_error(oracle, sequences, quantization)
    record = ParityRecord(
        header, tuple(known.values()), tuple(skipped), conditioning, kv_errors, weight_errors, request.formats
    )
    write_record(path, record)
    journal.close()
    return record


def _is_current(name: str, key: str, prompts: Sequence[Prompt]) -> bool:
    """Whether none of the prompts has taken this name for another text: in a record, a name is one prompt's."""
    return all(prompt.key == key for prompt in prompts if prompt.name == name)


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
        quantization=oracle.quantization,
        rolling=request.rolling,
    )


def encode_prompts(
    encoder: PromptEncoder, prompts: Sequence[Prompt], max_input_len: int | None
) -> tuple[list[tuple[Prompt, EncodedPrompt]], list[SkippedPrompt]]:
    """The prompts that can be asked, and those that cannot with the reason. Raises InputError when none can."""
    encoded, skipped = [], []
    for prompt in prompts:
        try:
            sent = encoder.encode(prompt)
            _refuse_long(prompt, sent, max_input_len)
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


def _ask(
    oracle: Oracle, asked: Sequence[tuple[Prompt, EncodedPrompt]], header: RecordHeader
) -> Iterator[RecordedAnswer]:
    if len(asked) == 1 or header.rolling is not None:
        for prompt, sent in asked:
            answer = oracle.answer(sent.prompt_ids, header.max_new_tokens, header.end_ids, header.rolling)
            yield _answer(prompt, sent, [step for _, step in answer], header)
        return
    prompts = [sent.prompt_ids for _, sent in asked]
    answers = answer_batch(oracle, prompts, header.max_new_tokens, header.end_ids)
    for (prompt, sent), steps in zip(asked, answers, strict=True):
        yield _answer(prompt, sent, steps, header)


def _answer(prompt: Prompt, sent: EncodedPrompt, steps: Sequence[OracleStep], header: RecordHeader) -> RecordedAnswer:
    token_ids = tuple(step.token_ids[0] for step in steps)
    return RecordedAnswer(
        name=prompt.name,
        group=prompt.group,
        prompt_key=prompt.key,
        text=sent.text,
        prompt_ids=sent.prompt_ids,
        token_ids=token_ids,
        finish_reason="end_id" if token_ids[-1] in header.end_ids else "length",
        steps=tuple(steps),
    )
