"""`trtkit parity check`: from a build or URL and options to a report and its files. Knows the order of the steps."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtkit import __version__
from trtkit.builds import Build
from trtkit.errors import InputError
from trtkit.evaluate.endpoints.deployment import Target, identified, open_endpoint, refuse_draft_lengths
from trtkit.evaluate.endpoints.endpoint import Endpoint
from trtkit.evaluate.oracle.libraries import require_oracle_libraries
from trtkit.evaluate.oracle.numerics import GivenFormats, formats_of, numeric_profile
from trtkit.evaluate.oracle.record import ParityRecord
from trtkit.evaluate.oracle.record_choice import Expectation, PromptChoice, expect_of_build, expect_of_file
from trtkit.evaluate.oracle.sources import unchanged_source
from trtkit.evaluate.oracle.tolerance import NumericProfile
from trtkit.evaluate.parity.check import STOP_SLACK, CheckResult, CheckRun, FindStop, PlannedRequest, plan_requests
from trtkit.evaluate.parity.document import ParityContext, parity_document
from trtkit.evaluate.parity.html import parity_html
from trtkit.evaluate.parity.junit import parity_junit
from trtkit.evaluate.parity.shares import ParityShares, broken_shares
from trtkit.evaluate.parity.stop_word import find_stop_word
from trtkit.evaluate.parity.summary import parity_markdown
from trtkit.evaluate.parity.text_answers import Decode
from trtkit.evaluate.parity.verdicts import Referee
from trtkit.evaluate.parity.window_scope import WindowScope
from trtkit.evaluate.reports.files import json_text, refuse_unwritable, write_files
from trtkit.progress import OnProgress, silent
from trtkit.serving.draft_schedule import FILE as SCHEDULE_FILE
from trtkit.serving.text import TextTokenizer

_UNKNOWN_BATCH_SIZE = 4


@dataclass(frozen=True)
class CheckOptions:
    """record: a record made earlier, instead of BUILD/parity/record.json. draft_lens: empty takes 0, 1 and the build's.
    formats: of a deployment whose build is not at hand. in_process: execute the build's checkpoints here
    instead of asking a server. replay: follow answers past a near-tie, which takes the original checkpoint and is
    left out for a record made elsewhere. tokenizer: the folder that reads the text of a server without token ids; None
    takes the build's, or the one beside the record. shares: override the build's. out: empty takes BUILD/parity.
    command: how to repeat it."""

    choice: PromptChoice
    record: Path | None = None
    draft_lens: tuple[int, ...] = ()
    formats: GivenFormats = field(default_factory=GivenFormats)
    in_process: bool = False
    replay: bool = True
    tokenizer: Path | None = None
    shares: ParityShares = field(default_factory=ParityShares)
    out: Path | None = None
    command: str = "trtkit parity check"


def check_parity(
    target: Target,
    options: CheckOptions,
    *,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Compare a deployment with the oracle, write the reports, and return the document of the JSON contract.

    Raises InputError when no usable record can be had, ServerError when the deployment fails; a difference is not an
    error here (see shares.py).
    """
    if target.build is not None:
        options.formats.refuse_for(target.build)
    refuse_draft_lengths(target, options.draft_lens)
    out = _out(target, options)
    refuse_unwritable(out)
    expected = _expectation(target, options, on_progress)
    target = identified(target)
    header = expected.record.header
    referee = Referee(header, _profile(target, options, expected.record))
    decode = _decoder(target, options)
    planned = plan_requests(
        expected.answers,
        _draft_lens(target, options),
        served=not options.in_process,
        find_stop=_stop_finder(target, decode),
    )
    scope = WindowScope.of(expected, in_process=options.in_process, follows=_follows(target, options))
    requests = _judged(scope, planned)
    with _endpoint(target, options, header.end_ids, clock_ns, on_progress) as endpoint:
        streams = target.build is None or target.build.config.serving.streaming
        served = not options.in_process
        run = CheckRun(endpoint, referee, expected.max_new_tokens, _concurrency(target), decode, streams, served)
        result = run.run(requests, on_progress)
    if target.build is not None and _replays(target, options) and scope.needs_following(result):
        result = _follow(result, expected, target.build, referee, on_progress)
    document = parity_document(result, _context(target, options, expected, referee, scope))
    document["broken_shares"] = list(broken_shares(document))
    write_parity_reports(document, out)
    return document


def _judged(scope: WindowScope, planned: Iterable[PlannedRequest]) -> list[PlannedRequest]:
    requests = scope.judged(planned)
    if not requests:
        raise InputError(
            "none of the answers can be judged: all pass the window of rolling sinks",
            "serve the build, and leave --in-process out",
            code="PROMPTS",
        )
    return requests


def _replays(target: Target, options: CheckOptions) -> bool:
    """Answers of a foreign server are text up to where they part, and no ids that could be followed."""
    return target.build is not None and not target.is_foreign and options.replay and options.record is None


def _follows(target: Target, options: CheckOptions) -> bool:
    return target.build is not None and _replays(target, options) and target.build.config.serving.streaming


def _context(
    target: Target, options: CheckOptions, expected: Expectation, referee: Referee, scope: WindowScope
) -> ParityContext:
    return ParityContext(
        deployment=target.name,
        command=options.command,
        max_new_tokens=expected.max_new_tokens,
        header=expected.record.header,
        profile=referee.profile,
        shares=options.shares.of(target.build),
        skipped=[*(s for s in expected.record.skipped if s.prompt_key in expected.prompt_keys), *scope.skipped],
        past_window=scope.document(),
        versions={"trtkit": __version__, **(target.build.manifest["versions"] if target.build is not None else {})},
    )


def write_parity_reports(document: dict[str, Any], out: Path) -> None:
    """report.json, junit.xml, summary.md and report.html in `out`. Raises BuildError when the disk is full."""
    texts = {
        "report.json": json_text(document),
        "junit.xml": parity_junit(document, [str(out / "report.html"), str(out / "report.json")]),
        "summary.md": parity_markdown(document),
        "report.html": parity_html(document),
    }
    write_files(out, texts)


def _expectation(target: Target, options: CheckOptions, on_progress: OnProgress) -> Expectation:
    if options.record is not None:
        return expect_of_file(options.record, options.choice, target.build)
    if target.build is None:
        raise InputError(
            f"{target.name} is a server, and nothing says what it should answer",
            "give the record of its build: --record BUILD/parity/record.json",
            code="PARITY-RECORD",
        )
    return expect_of_build(target.build, options.choice, on_progress)


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
    require_oracle_libraries()
    from trtkit.evaluate.endpoints.reference import ReferenceEndpoint, load_models

    yield ReferenceEndpoint(load_models(target.build, end_ids), clock_ns)


def _decoder(target: Target, options: CheckOptions) -> Decode | None:
    """The text of token ids as the oracle's tokenizer has it, where one is at hand."""
    folder = options.tokenizer
    if folder is None and target.build is not None:
        folder = target.build.tokenizer
    if folder is None and options.record is not None:
        folder = options.record.resolve().parent.parent / "tokenizer"
        if not folder.is_dir():
            return None
    if folder is None:
        return None
    tokenizer = TextTokenizer.load(folder)
    return lambda token_ids: tokenizer.decode(token_ids, skip_special_tokens=True)


def _stop_finder(target: Target, decode: Decode | None) -> FindStop | None:
    """Stop words are asked of trtkit's own models; their answers end with the token that completes the word."""
    if decode is None or target.is_foreign:
        return None
    slack = STOP_SLACK + (target.build.config.max_draft_len if target.build is not None else STOP_SLACK)
    return lambda answer: find_stop_word(answer, decode, slack)


def _out(target: Target, options: CheckOptions) -> Path:
    if options.out is not None:
        return options.out
    return target.build.folder / "parity" if target.build is not None else Path("parity")


def _follow(
    result: CheckResult, expected: Expectation, build: Build, referee: Referee, on_progress: OnProgress
) -> CheckResult:
    require_oracle_libraries()
    from trtkit.evaluate.oracle.oracle import Oracle
    from trtkit.evaluate.parity.replay import follow_near_ties

    header = referee.header
    oracle = Oracle.load(unchanged_source(build, "target"), dtype=header.dtype, quantization=header.quantization)
    return follow_near_ties(result, expected.answers, oracle, referee, expected.max_new_tokens, on_progress)


def _profile(target: Target, options: CheckOptions, record: ParityRecord) -> NumericProfile:
    """The numerics of the deployment by its build, or by the user and the record."""
    own = formats_of(target.build) if target.build is not None else options.formats.over(record.formats)
    return numeric_profile(record, own)


def _concurrency(target: Target) -> int:
    """As many requests at once as the deployment batches; a few for a server of unknown limits."""
    return target.build.config.limits.max_batch_size if target.build is not None else _UNKNOWN_BATCH_SIZE


def _draft_lens(target: Target, options: CheckOptions) -> tuple[int | None, ...]:
    """Off, one token, and the build's most; and what the deployment does by itself, where it chooses by itself."""
    if options.draft_lens:
        refuse_draft_lengths(target, options.draft_lens)
        return tuple(dict.fromkeys(options.draft_lens))
    if target.is_foreign:
        return (None,)
    if target.build is None:
        return (0, None)
    longest = target.build.config.max_draft_len
    chosen = (0, *((1, longest) if longest else ()))
    adaptive = getattr(target.build.config.speculation, "adaptive", False)
    chooses = adaptive or (target.build.folder / SCHEDULE_FILE).exists()
    return (*dict.fromkeys(chosen), *((None,) if longest and chooses and not options.in_process else ()))
