"""trtkit's counters on a server's /metrics page, and a line about what happened between two readings."""

import http.client
import re
from collections.abc import Mapping

from trtkit.errors import ServerError
from trtkit.server.endpoints import Endpoints
from trtkit.serving.contract import BLS, TARGET

Counters = Mapping[tuple[str, str], float]
"""(name without "trtkit_", model) -> value."""

_LINE = re.compile(r'^trtkit_(?P<name>\w+)\{model="(?P<model>[\w.-]+)"\} (?P<value>\S+)$', re.MULTILINE)


def parse_counters(page: str) -> dict[tuple[str, str], float]:
    """trtkit's own counters; Triton's and other models' are left out."""
    return {(match["name"], match["model"]): float(match["value"]) for match in _LINE.finditer(page)}


def read_counters(endpoints: Endpoints, timeout_s: float = 5.0) -> dict[tuple[str, str], float]:
    """Fetch and parse. Raises ServerError when nobody answers there."""
    connection = http.client.HTTPConnection(endpoints.host, endpoints.metrics_port, timeout=timeout_s)
    try:
        connection.request("GET", "/metrics")
        return parse_counters(connection.getresponse().read().decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(
            f"no metrics at {endpoints.host}:{endpoints.metrics_port}: {error}",
            "give the server's own --metrics-port",
            code="METRICS",
        ) from None
    finally:
        connection.close()


def describe_change(before: Counters, after: Counters, seconds: float) -> str | None:
    """One line about the answers that ended in between; None when there were none."""

    def grown(name: str, model: str = BLS) -> float:
        return after.get((name, model), 0.0) - before.get((name, model), 0.0)

    if grown("answers") <= 0:
        return None
    passes, drafted, tokens = grown("target_passes"), grown("draft_tokens"), grown("output_tokens")
    prompt, reused = grown("engine_prompt_tokens", TARGET), grown("engine_reused_tokens", TARGET)
    parts = [f"{grown('answers'):.0f} answers", f"{tokens / seconds:.1f} tokens/s"]
    if drafted:
        parts.append(f"{grown('accepted_draft_tokens') / drafted:.0%} of drafts accepted")
        parts.append(f"draft length {drafted / passes:.1f}")
    if prompt:
        parts.append(f"{reused / prompt:.0%} of prompt tokens reused")
    if grown("evicted_tokens"):
        parts.append(f"{grown('evicted_tokens'):.0f} tokens evicted")
    return ", ".join(parts)
