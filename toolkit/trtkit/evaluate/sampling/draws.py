"""Samples of one prompt at one draft length, drawn and tested look by look. Knows endpoints and probabilities."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np

from trtkit.evaluate.endpoints.endpoint import Endpoint, EndpointRequest
from trtkit.evaluate.sampling.distribution import POWER, detectable_distance, distance, make_bins
from trtkit.evaluate.sampling.sequential import Decision, Design, decide

Pair = tuple[int, int | None]
Probabilities = dict[int, float]


@dataclass(frozen=True)
class PositionTest:
    """One test: the tokens at a position; at position 1 after the first token that the target likes best.

    distance is the total variation observed, detectable_distance the one that this many samples find with probability
    0.9. num_looks says how often the test was consulted before it was decided.
    """

    name: str
    draft_len: int
    position: int
    num_samples: int
    num_bins: int
    p_value: float
    distance: float
    detectable_distance: float
    num_looks: int
    decision: Decision


@dataclass(frozen=True)
class Source:
    """One prompt at one draft length: how it is asked, and what the oracle expects of its first two tokens.

    second is given after the first token `head`. end_ids[0] stands for every end token.
    """

    name: str
    request: EndpointRequest
    first: Probabilities
    head: int
    second: Probabilities
    end_ids: Sequence[int]


def draw(endpoint: Endpoint, source: Source, seeds: Sequence[int], pool: Executor) -> list[Pair]:
    """The first two tokens for each seed; an answer that ended has the end token there, and None after it."""
    end_id = source.end_ids[0]

    def one(seed: int) -> Pair:
        token_ids = [*endpoint.generate(replace(source.request, seed=seed)).token_ids, end_id]
        first, second = (end_id if token in source.end_ids else token for token in [*token_ids, end_id][:2])
        return first, None if first == end_id else second

    return list(pool.map(one, seeds))


def sample_and_test(
    source: Source, design: Design, draw_more: Callable[[int, int], list[Pair]], rng: np.random.Generator
) -> tuple[list[Pair], list[PositionTest]]:
    """Draw up to each look of the design until the leading test is decided; draw_more takes a range of sample numbers.

    The first token leads; the second one, where the first is all but certain. The other position is tested with what
    is there then, and states what that many samples find. One whose tokens fall into one bin is not tested.
    """
    leads = 0 if len(make_bins(source.first, design.looks[-1]).probabilities) > 1 else 1
    pairs: list[Pair] = []
    decided: dict[int, PositionTest] = {}
    for number, num_samples in enumerate(design.looks, 1):
        pairs += draw_more(len(pairs), num_samples)
        look = _Look(number, number == len(design.looks))
        for position in (leads, 1 - leads):
            test = _test(source, position, pairs, design, look, rng)
            if position not in decided and test is not None and test.decision != "open":
                decided[position] = test
            look = replace(look, is_last=look.is_last or leads in decided)
        if look.is_last:
            break
    return pairs, [decided[position] for position in sorted(decided)]


@dataclass(frozen=True)
class _Look:
    """One look, counted from 1; the last one decides."""

    number: int
    is_last: bool


def _test(
    source: Source, position: int, pairs: Sequence[Pair], design: Design, look: _Look, rng: np.random.Generator
) -> PositionTest | None:
    tokens, probabilities = _tokens(source, position, pairs)
    bins = make_bins(probabilities, len(tokens))
    if len(bins.probabilities) < 2:
        return None
    counts, num_bins = bins.count(tokens), len(bins.probabilities)
    decision, p = decide(counts, bins.probabilities, design, is_last=look.is_last, rng=rng)
    return PositionTest(
        name=source.name,
        draft_len=source.request.draft_len or 0,
        position=position,
        num_samples=len(tokens),
        num_bins=num_bins,
        p_value=p,
        distance=distance(counts, bins.probabilities),
        detectable_distance=detectable_distance(num_bins, len(tokens), design.alpha_per_look, rng, POWER),
        num_looks=look.number,
        decision=decision,
    )


def _tokens(source: Source, position: int, pairs: Sequence[Pair]) -> tuple[list[int], Probabilities]:
    """The tokens at a position, and what is expected of them."""
    if position == 0:
        return [first for first, _ in pairs], source.first
    return [second for first, second in pairs if first == source.head and second is not None], source.second
