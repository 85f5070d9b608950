"""`trtkit parity sampling`: do a deployment's samples follow the target's distribution? Knows the order of steps."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trtkit import __version__
from trtkit.builds import Build
from trtkit.checkpoints.stop_ids import read_stop_ids
from trtkit.errors import DifferenceError, InputError
from trtkit.evaluate.endpoints.deployment import Target, open_endpoint, refuse_draft_lengths, refuse_llmapi
from trtkit.evaluate.endpoints.endpoint import Endpoint, EndpointRequest
from trtkit.evaluate.endpoints.workers import workers
from trtkit.evaluate.oracle.record import SkippedPrompt
from trtkit.evaluate.oracle.record_choice import PromptChoice, comparable_input_len
from trtkit.evaluate.oracle.recording import encode_prompts
from trtkit.evaluate.oracle.sources import unchanged_source
from trtkit.evaluate.reports.files import json_text, refuse_unwritable, write_files
from trtkit.evaluate.sampling.distribution import POWER
from trtkit.evaluate.sampling.draws import Pair, PositionTest, Source, draw, sample_and_test
from trtkit.evaluate.sampling.expected import expected_of
from trtkit.evaluate.sampling.html import sampling_html
from trtkit.evaluate.sampling.sequential import LEAST_ALPHA, Design, make_design
from trtkit.evaluate.sampling.summary import sampling_junit, sampling_markdown
from trtkit.progress import OnProgress, Progress, silent
from trtkit.prompts.encoding import PromptEncoder

SCHEMA = "trtkit.sampling-parity/2"
_POSITIONS = 2
_ALL_BUT_CERTAIN = 0.98
_UNTESTED = "one token is all but certain, or each is rarer than a few of these samples"


@dataclass(frozen=True)
class SamplingOptions:
    """most_samples per prompt and draft length. distance: the total variation to be found with probability POWER.
    alpha: the probability of one false alarm in the whole run. draft_lens: empty takes 0 and the build's. command: how
    to repeat it."""

    choice: PromptChoice
    most_samples: int = 2000
    distance: float = 0.2
    temperature: float = 1.0
    seed: int = 0
    alpha: float = 0.01
    draft_lens: tuple[int, ...] = ()
    command: str = "trtkit parity sampling"


@dataclass(frozen=True)
class _Asked:
    """Every prompt at every draft length, the prompts that cannot be asked, and the model that the probabilities are
    taken from."""

    sources: list[Source]
    skipped: list[SkippedPrompt]
    probabilities: str


@dataclass(frozen=True)
class _Sampled:
    """What one source gave."""

    source: Source
    design: Design
    pairs: list[Pair]
    tests: list[PositionTest]


def check_sampling(build: Build, options: SamplingOptions, on_progress: OnProgress = silent) -> dict[str, Any]:
    """Sample the served build with and without speculation and test both against the oracle's probabilities.

    Raises ServerError when the deployment fails, InputError when nothing can be tested; a difference is not an error
    here (see refuse_bias).
    """
    target = Target(str(build.folder), build)
    refuse_llmapi(target)
    refuse_draft_lengths(target, options.draft_lens)
    out = build.folder / "parity"
    refuse_unwritable(out)
    asked = _ask(build, options)
    sources = asked.sources
    seeds = np.random.default_rng(options.seed)
    alpha = options.alpha / (_POSITIONS * len(sources))
    _refuse_small(alpha, options, _POSITIONS * len(sources))
    sampled = []
    with open_endpoint(target, time.perf_counter_ns, on_progress) as endpoint:
        for done, source in enumerate(sources):
            on_progress(Progress("sampling", done, len(sources), "runs"))
            leading = source.first if max(source.first.values()) < _ALL_BUT_CERTAIN else source.second
            design = make_design(leading, options.distance, alpha, options.most_samples, seeds)
            sampled.append(_sample(endpoint, source, design, options, build.config.limits.max_batch_size))
        on_progress(Progress("sampling", len(sources), len(sources), "runs"))
    if not any(one.tests for one in sampled):
        raise InputError(
            f"no position can be tested: {_UNTESTED}",
            "give other prompts, another --temperature, or more --samples",
            code="SAMPLING-UNTESTED",
        )
    document = _document(build, options, sampled, asked)
    texts = {
        "sampling.json": json_text(document),
        "sampling-junit.xml": sampling_junit(document, [str(out / f"sampling.{kind}") for kind in ("html", "json")]),
        "sampling.md": sampling_markdown(document),
        "sampling.html": sampling_html(document),
    }
    write_files(out, texts)
    return document


def _refuse_small(alpha: float, options: SamplingOptions, num_tests: int) -> None:
    """Raise InputError for a level of one test at which it could never fail."""
    if alpha < LEAST_ALPHA:
        raise InputError(
            f"--alpha {options.alpha:g} leaves {alpha:.2g} for each of {num_tests} tests, at which none can ever fail",
            f"give --alpha {LEAST_ALPHA * num_tests:.2g} or more, or fewer prompts with --limit",
            code="SAMPLING-ALPHA",
        )


def refuse_bias(document: dict[str, Any]) -> None:
    """Raise DifferenceError when a test failed."""
    rejected = [test for test in document["tests"] if test["decision"] == "different"]
    if rejected:
        worst = min(rejected, key=lambda test: test["p_value"])
        raise DifferenceError(
            f"{len(rejected)} of {len(document['tests'])} tests reject the target's distribution, first of all "
            f"{worst['name']} with draft length {worst['draft_len']}, token {worst['position']}: total variation "
            f"{worst['distance']:.3f}, p = {worst['p_value']:.2g}",
            "compare the runs with draft length 0 and above: if only the latter fail, the acceptance rule is wrong; "
            "if both do, temperature, cuts or the logits are",
            code="SAMPLING-PARITY",
        )


def _ask(build: Build, options: SamplingOptions) -> _Asked:
    folder = unchanged_source(build, "target")
    end_ids = read_stop_ids(folder)[0]
    expected = expected_of(build, folder, options.temperature, end_ids)
    prompts = options.choice.read(build)
    draft_lens = tuple(dict.fromkeys(options.draft_lens or (0, build.config.max_draft_len)))
    longest = comparable_input_len(build, max(1, *draft_lens) + 2)
    encoded, skipped = encode_prompts(PromptEncoder.load(folder), prompts, longest)
    sources = []
    for prompt, sent in encoded:
        first = expected.probabilities(sent.prompt_ids)
        head = max((token for token in first if token not in end_ids), key=first.__getitem__)
        second = expected.probabilities((*sent.prompt_ids, head))
        for draft_len in draft_lens:
            request = EndpointRequest(
                sent.text, max(draft_len, 1) + 2, draft_len, stream=False, temperature=options.temperature
            )
            sources.append(Source(prompt.name, request, first, head, second, end_ids))
    return _Asked(sources, skipped, expected.name)


def _sample(endpoint: Endpoint, source: Source, design: Design, options: SamplingOptions, concurrency: int) -> _Sampled:
    with workers(concurrency) as pool:

        def draw_more(start: int, stop: int) -> list[Pair]:
            return draw(endpoint, source, range(options.seed + start, options.seed + stop), pool)

        pairs, tests = sample_and_test(source, design, draw_more, np.random.default_rng(options.seed))
    return _Sampled(source, design, pairs, tests)


def _same_draws(sampled: Sequence[_Sampled]) -> float | None:
    """Share of seeds that gave the same tokens with and without drafts, as far as both were drawn."""
    plain = {one.source.name: one.pairs for one in sampled if not one.source.request.draft_len}
    drafted = [(one.pairs, plain.get(one.source.name, [])) for one in sampled if one.source.request.draft_len]
    same = [one == other for pairs, others in drafted for one, other in zip(pairs, others, strict=False)]
    return sum(same) / len(same) if same else None


def _untested(sampled: Sequence[_Sampled]) -> list[dict[str, str]]:
    """The prompts that were asked, and whose answers say nothing about the distribution."""
    tested = {test.name for one in sampled for test in one.tests}
    names = dict.fromkeys(one.source.name for one in sampled)
    return [{"name": name, "reason": _UNTESTED} for name in names if name not in tested]


def _document(build: Build, options: SamplingOptions, sampled: Sequence[_Sampled], asked: _Asked) -> dict[str, Any]:
    tests = [test for one in sampled for test in one.tests]
    return {
        "schema": SCHEMA,
        "verdict": "different" if any(test.decision == "different" for test in tests) else "consistent",
        "deployment": str(build.folder),
        "command": options.command,
        "probabilities": asked.probabilities,
        "temperature": options.temperature,
        "seed": options.seed,
        "alpha": options.alpha,
        "power": POWER,
        "distance": options.distance,
        "num_samples": sum(len(one.pairs) for one in sampled),
        "most_samples": sum(one.design.looks[-1] for one in sampled),
        "same_draws": _same_draws(sampled),
        "tests": [asdict(test) for test in tests],
        "skipped": [entry.as_dict() for entry in asked.skipped] + _untested(sampled),
        "versions": {"trtkit": __version__, **build.manifest["versions"]},
    }
