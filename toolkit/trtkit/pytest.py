"""pytest plugin for users' own tests of a deployment: `pytest -p trtkit.pytest --trtkit-build BUILD`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from trtkit.builds import Build, open_build
from trtkit.evaluate.assertions import assert_latency, assert_parity, assert_sampling
from trtkit.evaluate.bench.limits import LatencyLimits
from trtkit.evaluate.endpoints.deployment import Target, open_address, refuse_unserved
from trtkit.evaluate.oracle.record_choice import PromptChoice

__all__ = ["LatencyLimits", "PromptChoice", "assert_latency", "assert_parity", "assert_sampling"]

_LIMITS = {
    "max_ttft_ms": "Median time to first token, at most.",
    "max_tpot_ms": "Median time per token after it, at most.",
    "min_speedup": "Speed-up of every draft length, at least.",
    "min_acceptance_rate": "Accepted / drafted tokens, at least.",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --trtkit-build, and an option for each latency limit."""
    group = parser.getgroup("trtkit")
    group.addoption("--trtkit-build", metavar="BUILD", help="The finished build directory that the tests are about.")
    for name, text in _LIMITS.items():
        group.addoption(f"--trtkit-{name.replace('_', '-')}", type=float, metavar="X", help=text)


@pytest.fixture(scope="session")
def trtkit_build(request: pytest.FixtureRequest) -> Build:
    """The build named by --trtkit-build. Without the option its tests are skipped."""
    folder = request.config.getoption("--trtkit-build")
    if folder is None:
        pytest.skip("give a build directory with --trtkit-build")
    return open_build(Path(folder))


@pytest.fixture(scope="session")
def trtkit_server(request: pytest.FixtureRequest, trtkit_build: Build) -> Iterator[str]:
    """host:port (gRPC) of the build's server: the running one, or one that lives until the last test is done.

    Raises InputError where pytest-xdist runs several processes and no server runs: the first one's would end with it.
    """
    refuse_unserved(trtkit_build, getattr(request.config, "workerinput", {}).get("workercount", 1))
    with open_address(Target(str(trtkit_build.folder), trtkit_build)) as address:
        yield address


@pytest.fixture(scope="session")
def trtkit_limits(request: pytest.FixtureRequest) -> LatencyLimits:
    """The limits of the command line; those that were not given are left to the build's YAML."""
    return LatencyLimits(**{name: request.config.getoption(f"--trtkit-{name.replace('_', '-')}") for name in _LIMITS})
