"""`trtkit parity sampling`: do a deployment's samples follow the target's distribution? Knows the order of steps."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from trtkit import __version__
from trtkit.artifacts import disk_error, write_text
from trtkit.builds import Build
from trtkit.checkpoints.stop_ids import read_stop_ids
from trtkit.errors import DifferenceError
from trtkit.evaluate.deployment import Target, open_endpoint
from trtkit.evaluate.distribution import (
    POWER,
    Bins,
    detectable_distance,
    distance,
    holm_rejections,
    make_bins,
    p_value,
)
from trtkit.evaluate.encoding import PromptEncoder
from trtkit.evaluate.endpoint import Endpoint, EndpointRequest
from trtkit.evaluate.oracle import Oracle
from trtkit.evaluate.record_choice import PromptChoice
from trtkit.evaluate.recording import encode_prompts
from trtkit.evaluate.sources import unchanged_source
from trtkit.progress import OnProgress, Progress, silent

SCHEMA = "trtkit.sampling-parity/1"


@dataclass(frozen=True)
class SamplingOptions:
    """num_samples per prompt and draft length; alpha is the probability of one false alarm in the whole run."""

    choice: PromptChoice
    num_samples: int = 400
    temperature: float = 1.0
    seed: int = 0
    alpha: float = 0.01


@dataclass(frozen=True)
class Samples:
    """What was drawn for one prompt with one draft length: (first token, second token or None) of every request."""

    name: str
    prompt_ids: tuple[int, ...]
    draft_len: int
    pairs: tuple[tuple[int, int | None], ...]


@dataclass(frozen=True)
class PositionTest:
    """One test: the tokens at a position, given the first token for position 1.

    distance is the total variation observed, detectable_distance the one that is found with probability 0.9.
    """

    name: str
    draft_len: int
    position: int
    num_samples: int
    num_bins: int
    p_value: float
    distance: float
    detectable_distance: float


def check_sampling(build: Build, options: SamplingOptions, on_progress: OnProgress = silent) -> dict[str, Any]:
    """Sample the served build with and without speculation and test both against the oracle's probabilities.

    Raises ServerError when the deployment fails; a difference is not an error here (see refuse_bias).
    """
    folder = unchanged_source(build, "target")
    end_ids = read_stop_ids(folder)[0]
    encoded, _ = encode_prompts(
        PromptEncoder.load(folder), options.choice.read(build), build.config.limits.max_input_len
    )
    prompts = [(prompt.name, sent.text, sent.prompt_ids) for prompt, sent in encoded]
    draft_lens = tuple(dict.fromkeys((0, build.config.max_draft_len)))
    samples = []
    with open_endpoint(Target(str(build.folder), build), time.perf_counter_ns, on_progress) as endpoint:
        runs = [(prompt, draft_len) for prompt in prompts for draft_len in draft_lens]
        for done, ((name, text, prompt_ids), draft_len) in enumerate(runs):
            on_progress(Progress("sampling", done, len(runs), "runs"))
            request = EndpointRequest(text, max(draft_len, 1) + 2, draft_len, temperature=options.temperature)
            pairs = _draw(endpoint, request, options, end_ids, build.config.limits.max_batch_size)
            samples.append(Samples(name, prompt_ids, draft_len, pairs))
        on_progress(Progress("sampling", len(runs), len(runs), "runs"))
    tests = list(_tests(Oracle.load(folder), samples, options, end_ids))
    document = _document(build, options, tests, samples)
    _write(document, build)
    return document


def refuse_bias(document: dict[str, Any]) -> None:
    """Raise DifferenceError when a test failed."""
    rejected = [test for test in document["tests"] if test["rejected"]]
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


def _draw(
    endpoint: Endpoint, request: EndpointRequest, options: SamplingOptions, end_ids: Sequence[int], concurrency: int
) -> tuple[tuple[int, int | None], ...]:
    """The first two tokens of every sample; an answer that ended has the end token there."""

    def one(number: int) -> tuple[int, int | None]:
        sampled = EndpointRequest(**{**asdict(request), "seed": options.seed + number})
        token_ids = [*endpoint.generate(sampled).token_ids, end_ids[0]]
        first = _one_end(token_ids[0], end_ids)
        return first, None if first == end_ids[0] else _one_end(token_ids[1], end_ids)

    with ThreadPoolExecutor(concurrency) as pool:
        return tuple(pool.map(one, range(options.num_samples)))


def _one_end(token: int, end_ids: Sequence[int]) -> int:
    return end_ids[0] if token in end_ids else token


def _tests(
    oracle: Oracle, samples: Sequence[Samples], options: SamplingOptions, end_ids: Sequence[int]
) -> Iterator[PositionTest]:
    """Position 0 of every run, and position 1 after the first token that was drawn most often."""
    rng = np.random.default_rng(options.seed)
    # Holm's first step is the strictest; the power is stated for it.
    alpha = options.alpha / (2 * len(samples))
    for drawn in samples:
        first, _ = Counter(pair[0] for pair in drawn.pairs if pair[1] is not None).most_common(1)[0]
        given = [second for head, second in drawn.pairs if head == first and second is not None]
        positions = [((), [pair[0] for pair in drawn.pairs]), ((first,), given)]
        for position, (prefix, tokens) in enumerate(positions):
            probabilities = _probabilities(oracle, (*drawn.prompt_ids, *prefix), options.temperature, end_ids)
            bins = make_bins(probabilities, len(tokens))
            if len(bins.probabilities) > 1:
                yield _test(drawn, position, tokens, bins, alpha, rng)


def _test(
    drawn: Samples, position: int, tokens: Sequence[int], bins: Bins, alpha: float, rng: np.random.Generator
) -> PositionTest:
    counts = bins.count(tokens)
    num_bins = len(bins.probabilities)
    return PositionTest(
        name=drawn.name,
        draft_len=drawn.draft_len,
        position=position,
        num_samples=len(tokens),
        num_bins=num_bins,
        p_value=p_value(counts, bins.probabilities, rng),
        distance=distance(counts, bins.probabilities),
        detectable_distance=detectable_distance(num_bins, len(tokens), alpha, rng),
    )


def _probabilities(
    oracle: Oracle, token_ids: Sequence[int], temperature: float, end_ids: Sequence[int]
) -> dict[int, float]:
    """The oracle's probability of each next token; end tokens count as the first of them."""
    logits = oracle.next_logits(token_ids).double()
    probabilities = dict(enumerate(torch.softmax(logits / temperature, dim=0).tolist()))
    for other in end_ids[1:]:
        probabilities[end_ids[0]] += probabilities.pop(other)
    return probabilities


def _document(
    build: Build, options: SamplingOptions, tests: Sequence[PositionTest], samples: Sequence[Samples]
) -> dict[str, Any]:
    rejections = holm_rejections([test.p_value for test in tests], options.alpha)
    plain = {drawn.name: drawn.pairs for drawn in samples if drawn.draft_len == 0}
    drafted = [(drawn.pairs, plain[drawn.name]) for drawn in samples if drawn.draft_len]
    same = [one == other for pairs, others in drafted for one, other in zip(pairs, others, strict=True)]
    return {
        "schema": SCHEMA,
        "verdict": "different" if any(rejections) else "consistent",
        "deployment": str(build.folder),
        "temperature": options.temperature,
        "num_samples": options.num_samples,
        "seed": options.seed,
        "alpha": options.alpha,
        "power": POWER,
        "same_draws": sum(same) / len(same) if same else None,
        "tests": [{**asdict(test), "rejected": no} for test, no in zip(tests, rejections, strict=True)],
        "versions": {"trtkit": __version__, **build.manifest["versions"]},
    }


def _write(document: dict[str, Any], build: Build) -> None:
    path = build.folder / "parity" / "sampling.json"
    try:
        write_text(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise disk_error(error, path) from error
