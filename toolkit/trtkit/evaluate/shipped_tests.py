"""Ready tests of a deployment: `pytest -p trtkit.pytest --trtkit-build BUILD --pyargs trtkit.evaluate.shipped_tests`.

One test per shipped suite, one of sampling, one of latency. They need a build and its server, and nothing else.
"""

import pytest

from trtkit.builds import Build
from trtkit.errors import InputError
from trtkit.evaluate.assertions import assert_latency, assert_parity, assert_sampling
from trtkit.evaluate.bench.limits import LatencyLimits
from trtkit.evaluate.oracle.record_choice import PromptChoice
from trtkit.prompts.files import GROUPS


@pytest.mark.parametrize("group", GROUPS)
def test_answers_are_those_of_the_checkpoint(group: str, trtkit_build: Build, trtkit_server: str) -> None:
    """No answer to this suite is different; near-ties are explained by the build's dtype."""
    try:
        assert_parity(trtkit_build, PromptChoice(group=group))
    except InputError as error:
        if error.code != "PROMPTS":
            raise
        pytest.skip(error.cause)  # a chat without a template, or more tokens than the build takes


def test_samples_follow_the_distribution_of_the_target(trtkit_build: Build, trtkit_server: str) -> None:
    """Exact, sequential, one false alarm in a hundred runs."""
    try:
        assert_sampling(trtkit_build, PromptChoice(limit=2))
    except InputError as error:
        if error.code != "SAMPLING-UNTESTED":
            raise
        pytest.skip(error.cause)


def test_latency_keeps_the_limits_of_the_command_line(
    trtkit_build: Build, trtkit_server: str, trtkit_limits: LatencyLimits
) -> None:
    """Limits come from --trtkit-max-ttft-ms and its like, or the build's YAML; without any the bench has to run."""
    assert_latency(trtkit_build, trtkit_limits)
