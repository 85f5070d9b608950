"""Which record a check compares with: one that stands, one that is given, or one made now. Knows builds, no server."""

from dataclasses import dataclass, replace
from pathlib import Path

from trtkit.builds import Build
from trtkit.checkpoints.stop_ids import read_stop_ids
from trtkit.errors import InputError
from trtkit.evaluate.oracle.configured_file import configured_file
from trtkit.evaluate.oracle.libraries import require_oracle_libraries
from trtkit.evaluate.oracle.numerics import formats_of, oracle_quantization
from trtkit.evaluate.oracle.record import ParityRecord, RecordedAnswer, read_record
from trtkit.evaluate.oracle.rolling import RollingRule
from trtkit.evaluate.oracle.sources import unchanged_source
from trtkit.evaluate.oracle.tolerance import Dtype
from trtkit.planning.rolling import evicted_at_once
from trtkit.progress import OnProgress, silent
from trtkit.prompts.files import Prompt, choose_prompts


@dataclass(frozen=True)
class PromptChoice:
    """Which prompts, and how long the answers; None leaves it to the build's `verification` section.

    group takes the prompts of one class, before limit counts them.
    """

    prompts: Path | None = None
    limit: int | None = None
    max_new_tokens: int | None = None
    group: str | None = None

    def read(self, build: Build | None) -> list[Prompt]:
        """The chosen prompts. Raises InputError for a file that holds none, or none of the class."""
        found = choose_prompts(self.prompts or configured_file(build, "prompts"), None)
        groups = dict.fromkeys(prompt.group for prompt in found)
        if self.group is not None and self.group not in groups:
            raise InputError(
                f"no prompt is of the class {self.group}", f"choose one of {', '.join(groups)}", code="PROMPTS-GROUP"
            )
        return [prompt for prompt in found if self.group in (None, prompt.group)][: self.limit]

    def length(self, build: Build) -> int:
        """Tokens to generate per prompt, at most what the deployment allows."""
        wanted = self.max_new_tokens or build.config.verification.max_new_tokens
        return min(wanted, build.config.limits.max_output_len)


@dataclass(frozen=True)
class Expectation:
    """What a deployment is held to: a record, those of its answers that are asked for, and how much of each."""

    record: ParityRecord
    answers: tuple[RecordedAnswer, ...]
    prompt_keys: frozenset[str]
    max_new_tokens: int


def record_path(build: Build) -> Path:
    """Where the record of a build lies."""
    return build.folder / "parity" / "record.json"


def record_build(
    build: Build,
    choice: PromptChoice,
    *,
    dtype: Dtype = "float32",
    device: str = "cpu",
    batch_size: int = 1,
    on_progress: OnProgress = silent,
) -> ParityRecord:
    """Ask the oracle on the build's original target checkpoint; answers that are recorded already are kept, and where
    those are longer than what is asked for, the new ones are made as long."""
    try:
        standing = _read_standing(build)
    except InputError:  # damaged, or of another version: it is replaced
        standing = None
    return _extended(build, choice, standing, _OracleSetup(dtype, device, batch_size), on_progress)


@dataclass(frozen=True)
class _OracleSetup:
    """How the oracle is run."""

    dtype: Dtype
    device: str = "cpu"
    batch_size: int = 1


def _extended(
    build: Build,
    choice: PromptChoice,
    standing: ParityRecord | None,
    setup: _OracleSetup,
    on_progress: OnProgress,
) -> ParityRecord:
    """The build's record with the answers that are asked for, written."""
    require_oracle_libraries()
    # They take seconds to import; a check with a complete record needs neither.
    from trtkit.evaluate.oracle.oracle import Oracle
    from trtkit.evaluate.oracle.recording import RecordRequest, make_record
    from trtkit.prompts.encoding import PromptEncoder

    folder = unchanged_source(build, "target")
    length = choice.length(build)
    if standing is not None and _is_about(standing, build) and standing.header.dtype == setup.dtype:
        length = max(length, standing.header.max_new_tokens)
    request = RecordRequest(
        checkpoint=build.config.target.checkpoint,
        folder=folder,
        digest=_digest(build),
        prompts=choice.read(build),
        end_ids=read_stop_ids(folder)[0],
        max_new_tokens=length,
        max_input_len=_longest_prompt(build, length),
        batch_size=setup.batch_size,
        formats=formats_of(build),
        rolling=rolling_rule(build),
        standing=standing,
    )
    quantization = oracle_quantization(formats_of(build))
    oracle = Oracle.load(folder, dtype=setup.dtype, device=setup.device, quantization=quantization)
    return make_record(oracle, PromptEncoder.load(folder), request, record_path(build), on_progress)


def rolling_rule(build: Build) -> RollingRule | None:
    """How the build's orchestrator drops tokens; None where it drops none, or the engine does."""
    sinks = build.config.attention_sinks
    if sinks is None or sinks.strategy != "rolling":
        return None
    evicted = evicted_at_once(sinks.window_tokens, build.config.kv_cache.block_size, sinks.evict_tokens)
    return RollingRule(sinks.sink_tokens, sinks.window_tokens, evicted)


def _longest_prompt(build: Build, max_new_tokens: int) -> int | None:
    """In tokens; with rolling sinks any prompt is taken."""
    return comparable_input_len(build, max_new_tokens) if rolling_rule(build) is None else None


def comparable_input_len(build: Build, max_new_tokens: int) -> int:
    """The longest prompt whose answer is the same whoever drops old tokens when: prompt, answer and the last draft have
    to fit into sinks and window."""
    config = build.config
    sinks, longest = config.attention_sinks, config.limits.max_input_len
    if sinks is None:
        return longest
    return min(longest, sinks.sink_tokens + sinks.window_tokens - max_new_tokens - config.max_draft_len - 1)


def expect_of_build(build: Build, choice: PromptChoice, on_progress: OnProgress = silent) -> Expectation:
    """The build's own record, made or extended where it does not hold what is asked for."""
    prompts, max_new_tokens = choice.read(build), choice.length(build)
    standing = _read_standing(build)
    record = standing if standing is not None and _is_about(standing, build) else None
    if record is None or not _holds(record, prompts, max_new_tokens):
        # An oracle of another dtype would replace what is recorded.
        setup = _OracleSetup(record.header.dtype if record is not None else "float32")
        record = _extended(build, choice, standing, setup, on_progress)
    return _expectation(record, prompts, max_new_tokens)


def expect_of_file(path: Path, choice: PromptChoice, build: Build | None) -> Expectation:
    """A record made earlier: without --prompts, the first of its answers up to --limit.

    Raises InputError when it is about another checkpoint than the build's, or holds less than is asked for.
    """
    record = read_record(path)
    if build is not None and record.header.digest != _digest(build):
        raise InputError(
            f"the record is about another checkpoint ({record.header.checkpoint})",
            "make one of this build with trtkit parity record",
            code="PARITY-RECORD",
            where=str(path),
        )
    prompts = choice.read(build) if choice.prompts or choice.group else None
    if prompts is not None and not record.covers(prompt.key for prompt in prompts):
        raise InputError(
            "the record does not hold all of these prompts",
            "record them with trtkit parity record --prompts, or leave --prompts out",
            code="PARITY-RECORD",
            where=str(path),
        )
    expected = _expectation(record, prompts, _length_of_file(record, choice, build))
    return expected if prompts is not None else replace(expected, answers=expected.answers[: choice.limit])


def _length_of_file(record: ParityRecord, choice: PromptChoice, build: Build | None) -> int:
    recorded, wanted = record.header.max_new_tokens, choice.max_new_tokens
    if wanted is not None and wanted > recorded:
        raise InputError(
            f"{wanted} tokens are asked for, the record holds {recorded}",
            f"record longer answers: trtkit parity record --max-new-tokens {wanted}",
            code="PARITY-RECORD",
        )
    return min(wanted or recorded, build.config.limits.max_output_len if build is not None else recorded)


def _expectation(record: ParityRecord, prompts: list[Prompt] | None, max_new_tokens: int) -> Expectation:
    """Raises InputError when every prompt that is asked for was left out of the record."""
    keys = [answer.prompt_key for answer in record.answers] if prompts is None else [prompt.key for prompt in prompts]
    answers = tuple(record.answers_to(keys))
    if not answers:
        reasons = [f"{entry.name}: {entry.reason}" for entry in record.skipped if entry.prompt_key in keys]
        raise InputError(
            f"no prompt can be asked ({'; '.join(reasons[:3])})", "give other prompts with --prompts", code="PROMPTS"
        )
    return Expectation(record, answers, frozenset(keys), max_new_tokens)


def _read_standing(build: Build) -> ParityRecord | None:
    """The record that lies in the build, whatever it is about."""
    path = record_path(build)
    return read_record(path) if path.is_file() else None


def _is_about(record: ParityRecord, build: Build) -> bool:
    """Whether it is about this checkpoint in these formats."""
    return record.header.digest == _digest(build) and record.formats == formats_of(build)


def _holds(record: ParityRecord, prompts: list[Prompt], max_new_tokens: int) -> bool:
    """Whether these prompts are recorded, and answers at least as long."""
    return record.header.max_new_tokens >= max_new_tokens and record.covers(prompt.key for prompt in prompts)


def _digest(build: Build) -> str:
    return str(build.manifest["inputs"]["target"]["digest"])
