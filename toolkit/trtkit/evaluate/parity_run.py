"""`trtkit parity`: from a build or URL and options to a record, a report and its files. Knows the order of steps."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit import __version__
from trtkit.artifacts import disk_error, write_text
from trtkit.builds import Build
from trtkit.checkpoints.stop_ids import read_stop_ids
from trtkit.errors import DifferenceError, InputError
from trtkit.evaluate.check import plan_requests, run_check
from trtkit.evaluate.deployment import Target, open_endpoint
from trtkit.evaluate.endpoint import Endpoint
from trtkit.evaluate.parity import Referee
from trtkit.evaluate.prompts import Prompt, choose_prompts
from trtkit.evaluate.record import ParityRecord, read_record
from trtkit.evaluate.reports.junit import parity_junit
from trtkit.evaluate.reports.markdown import parity_markdown, parity_summary
from trtkit.evaluate.reports.parity_document import ParityContext, parity_document
from trtkit.evaluate.sources import unchanged_source
from trtkit.evaluate.tolerance import Dtype, NumericProfile, loses_bits
from trtkit.progress import OnProgress, silent


@dataclass(frozen=True)
class PromptChoice:
    """Which prompts, and how long the answers; None leaves it to the build's `verification` section."""

    prompts: Path | None = None
    limit: int | None = None
    max_new_tokens: int | None = None

    def read(self, build: Build | None) -> list[Prompt]:
        """The chosen prompts. Raises InputError for a file that holds none."""
        configured = build.config.verification.prompts if build is not None else None
        return choose_prompts(self.prompts or (Path(configured) if configured else None), self.limit)

    def length(self, build: Build) -> int:
        """Tokens to generate per prompt, at most what the deployment allows."""
        wanted = self.max_new_tokens or build.config.verification.max_new_tokens
        return min(wanted, build.config.limits.max_output_len)


@dataclass(frozen=True)
class CheckOptions:
    """record: a record made earlier, instead of BUILD/parity/record.json. draft_lens: empty takes 0 and the build's.
    dtype: what a deployment computes in whose build is not at hand. in_process: execute the build's checkpoints here
    instead of asking a server. command: how to repeat this check."""

    choice: PromptChoice = PromptChoice()
    record: Path | None = None
    draft_lens: tuple[int, ...] = ()
    dtype: Dtype = "bfloat16"
    in_process: bool = False
    out: Path | None = None
    command: str = "trtkit parity check"


def record_path(build: Build) -> Path:
    """Where the record of a build lies."""
    return build.folder / "parity" / "record.json"


def record_build(
    build: Build,
    choice: PromptChoice,
    *,
    dtype: Dtype = "float32",
    device: str = "cpu",
    on_progress: OnProgress = silent,
) -> ParityRecord:
    """Ask the oracle on the build's original target checkpoint; answers that are recorded already are kept."""
    # torch and transformers take seconds to import; a check with a complete record needs neither.
    from trtkit.evaluate.encoding import PromptEncoder
    from trtkit.evaluate.oracle import Oracle
    from trtkit.evaluate.recording import RecordRequest, make_record

    folder = unchanged_source(build, "target")
    request = RecordRequest(
        checkpoint=build.config.target.checkpoint,
        folder=folder,
        digest=build.manifest["inputs"]["target"]["digest"],
        prompts=choice.read(build),
        end_ids=read_stop_ids(folder)[0],
        max_new_tokens=choice.length(build),
        max_input_len=build.config.limits.max_input_len,
    )
    oracle = Oracle.load(folder, dtype=dtype, device=device)
    return make_record(oracle, PromptEncoder.load(folder), request, record_path(build), on_progress)


def check_parity(
    target: Target,
    options: CheckOptions,
    *,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Compare a deployment with the oracle, write the reports, and return the document of the JSON contract.

    Raises InputError when no usable record can be had, ServerError when the deployment fails; a difference is not an
    error here (see refuse_difference).
    """
    record, prompts = _record_for(target, options, on_progress)
    max_new_tokens = _answer_length(target, options, record)
    keys = [prompt.key for prompt in prompts] if prompts else [answer.prompt_key for answer in record.answers]
    header, profile = record.header, _profile(target, options, record)
    requests = list(plan_requests(record.answers_to(keys), _draft_lens(target, options)))
    with _endpoint(target, options, header.end_ids, clock_ns, on_progress) as endpoint:
        result = run_check(endpoint, requests, Referee(header, profile), max_new_tokens, on_progress)
    context = ParityContext(
        deployment=target.name,
        command=options.command,
        max_new_tokens=max_new_tokens,
        header=header,
        profile=profile,
        skipped=[left_out for left_out in record.skipped if left_out.prompt_key in keys],
        versions={"trtkit": __version__, **(target.build.manifest["versions"] if target.build is not None else {})},
    )
    document = parity_document(result, context)
    write_parity_reports(document, _out(target, options))
    return document


def refuse_difference(document: dict[str, Any]) -> None:
    """Raise DifferenceError when a check found answers that rounding does not explain."""
    if document["verdict"] == "different":
        raise DifferenceError(
            parity_summary(document),
            "see the first difference of each prompt in the report; a fault in weights or tokenizer shows early and in "
            "every prompt, one in caching or speculation only in requests that are repeated or have a draft length",
            code="PARITY",
        )


def write_parity_reports(document: dict[str, Any], out: Path) -> None:
    """report.json, junit.xml and summary.md in `out`. Raises BuildError when the disk is full."""
    texts = {
        "report.json": json.dumps(document, indent=1, allow_nan=False) + "\n",
        "junit.xml": parity_junit(document),
        "summary.md": parity_markdown(document),
    }
    for name, text in texts.items():
        try:
            write_text(out / name, text)
        except OSError as error:
            raise disk_error(error, out) from error


@contextmanager
def _endpoint(
    target: Target,
    options: CheckOptions,
    end_ids: Sequence[int],
    clock_ns: Callable[[], int],
    on_progress: OnProgress,
) -> Iterator[Endpoint]:
    if not options.in_process:
        with open_endpoint(target, clock_ns, on_progress) as endpoint:
            yield endpoint
        return
    if target.build is None:
        raise InputError(f"{target.name} is a server", "give the build directory to execute it here", code="URL")
    from trtkit.evaluate.reference_endpoint import ReferenceEndpoint, load_models

    yield ReferenceEndpoint(load_models(target.build, end_ids), clock_ns)


def _out(target: Target, options: CheckOptions) -> Path:
    if options.out is not None:
        return options.out
    return target.build.folder / "parity" if target.build is not None else Path("parity")


def _record_for(
    target: Target, options: CheckOptions, on_progress: OnProgress
) -> tuple[ParityRecord, list[Prompt] | None]:
    """The record to compare with, made if need be, and the prompts chosen of it (None: all that it holds)."""
    build = target.build
    if options.record is not None:
        record = read_record(options.record)
        prompts = options.choice.read(build) if options.choice.prompts or options.choice.limit else None
        _refuse_foreign(record, prompts, build, str(options.record))
        return record, prompts
    if build is None:
        raise InputError(
            f"{target.name} is a server, and nothing says what it should answer",
            "give the record of its build: --record BUILD/parity/record.json",
            code="PARITY-RECORD",
        )
    prompts = options.choice.read(build)
    standing = _standing_record(build, prompts, options.choice.length(build))
    return standing or record_build(build, options.choice, on_progress=on_progress), prompts


def _standing_record(build: Build, prompts: list[Prompt], max_new_tokens: int) -> ParityRecord | None:
    """The build's record, if it is about this checkpoint, these prompts and answers at least as long."""
    if not record_path(build).is_file():
        return None
    record = read_record(record_path(build))
    same = record.header.digest == build.manifest["inputs"]["target"]["digest"]
    enough = record.header.max_new_tokens >= max_new_tokens and record.covers(prompt.key for prompt in prompts)
    return record if same and enough else None


def _refuse_foreign(record: ParityRecord, prompts: list[Prompt] | None, build: Build | None, where: str) -> None:
    if build is not None and record.header.digest != build.manifest["inputs"]["target"]["digest"]:
        raise InputError(
            f"the record is about another checkpoint ({record.header.checkpoint})",
            "make one of this build with trtkit parity record",
            code="PARITY-RECORD",
            where=where,
        )
    if prompts is not None and not record.covers(prompt.key for prompt in prompts):
        raise InputError(
            "the record does not hold all of these prompts",
            "record them with trtkit parity record --prompts, or leave --prompts and --limit out",
            code="PARITY-RECORD",
            where=where,
        )


def _profile(target: Target, options: CheckOptions, record: ParityRecord) -> NumericProfile:
    """The numerics of the deployment, as far as its build or the user says."""
    header = record.header
    dtype = target.build.config.target.dtype if target.build is not None else options.dtype
    return NumericProfile(
        dtype=dtype,
        num_layers=header.num_layers,
        hidden_size=header.hidden_size,
        weights_rounded=loses_bits(header.weights_dtype, dtype),
        conditioning=record.conditioning,
        oracle_dtype=header.dtype,
    )


def _answer_length(target: Target, options: CheckOptions, record: ParityRecord) -> int:
    """Tokens to ask for. Raises InputError for more than the record holds."""
    build, recorded = target.build, record.header.max_new_tokens
    wanted = options.choice.max_new_tokens
    if wanted is not None and wanted > recorded:
        raise InputError(
            f"{wanted} tokens are asked for, the record holds {recorded}",
            f"record longer answers: trtkit parity record --max-new-tokens {wanted}",
            code="PARITY-RECORD",
        )
    return min(recorded, options.choice.length(build)) if build is not None else wanted or recorded


def _draft_lens(target: Target, options: CheckOptions) -> tuple[int | None, ...]:
    """Speculation off, and on where the deployment can: with the build's draft length, or as the server has it."""
    if options.draft_lens:
        return tuple(dict.fromkeys(options.draft_lens))
    if target.build is None:
        return (0, None)
    return tuple(dict.fromkeys((0, target.build.config.max_draft_len)))
