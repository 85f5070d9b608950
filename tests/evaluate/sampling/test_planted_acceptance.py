"""Speculative sampling with the right rule of acceptance and with wrong ones, put to the sampling test."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray
from trtkit.evaluate.endpoints.endpoint import EndpointRequest, Generation
from trtkit.evaluate.sampling.draws import Source, draw, sample_and_test
from trtkit.evaluate.sampling.sequential import make_design

P = {7: 0.45, 8: 0.25, 9: 0.2, 10: 0.1}
Q = {7: 0.25, 8: 0.35, 9: 0.15, 10: 0.25}
TOKENS = list(P)
Probabilities = NDArray[np.float64]


class SpeculatingEndpoint:
    """Drafts from Q, verifies against P, token by token. rule "p/q" is exact (Leviathan et al. 2023, theorem 1)."""

    def __init__(self, rule: str) -> None:
        self._rule = rule

    def generate(self, request: EndpointRequest) -> Generation:
        rng = np.random.default_rng(request.seed)
        return Generation(tuple(self._token(rng) for _ in range(2)), 0, ())

    def _token(self, rng: np.random.Generator) -> int:
        p, q = np.array(list(P.values())), np.array(list(Q.values()))
        drafted = int(rng.choice(len(TOKENS), p=q))
        chance = {"p/q": p / q, "q/p": q / p, "always": np.ones_like(p)}[self._rule][drafted]
        if rng.random() < chance:
            return TOKENS[drafted]
        recovered = np.maximum(p - q, 0)
        return TOKENS[int(rng.choice(len(TOKENS), p=recovered / recovered.sum()))]


def decisions(rule: str) -> list[str]:
    source = Source("a", EndpointRequest("a", 4, 2), P, 7, P, (2,))
    design = make_design(P, 0.15, 0.005, 5000, np.random.default_rng(0))
    endpoint = SpeculatingEndpoint(rule)
    with ThreadPoolExecutor(1) as pool:
        _, tests = sample_and_test(
            source,
            design,
            lambda start, stop: draw(endpoint, source, range(start, stop), pool),
            np.random.default_rng(0),
        )
    return [test.decision for test in tests]


def test_the_exact_rule_passes() -> None:
    assert decisions("p/q") == ["consistent", "consistent"]


@pytest.mark.parametrize("rule", ["q/p", "always"])
def test_a_rule_that_accepts_too_much_is_found(rule: str) -> None:
    assert "different" in decisions(rule)
