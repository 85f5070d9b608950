"""Triton's HTTP endpoint for readiness and loading. Talks to a server, starts none; standard library only."""

import http.client
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """HTTP status, 0 when nobody answered in time, and Triton's `error` text or the reason.

    document is the JSON that came, None where the answer was none.
    """

    status: int
    error: str
    timed_out: bool = False
    document: Any = None


class AdminClient:
    """One server's administration by HTTP. Every call has its own connection and time-out."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    def is_live(self, timeout_s: float = 2.0) -> bool:
        """Whether the server answers at all; models need not be loaded."""
        return self._ask("GET", "/v2/health/live", timeout_s).status == 200

    def is_ready(self, model: str, timeout_s: float = 2.0) -> bool:
        """Whether Triton counts `model` as loaded. A model whose process died still counts."""
        return self._ask("GET", f"/v2/models/{model}/ready", timeout_s).status == 200

    def config(self, model: str, timeout_s: float = 10.0) -> dict[str, Any] | None:
        """The config that a loaded model runs with, as JSON; None when the server does not say."""
        answer = self._ask("GET", f"/v2/models/{model}/config", timeout_s)
        return answer.document if answer.status == 200 and isinstance(answer.document, dict) else None

    def load(self, model: str, timeout_s: float, config_json: str | None = None) -> Answer:
        """Load or reload one model, with its config.pbtxt or with the config given instead."""
        body = {} if config_json is None else {"parameters": {"config": config_json}}
        return self._ask("POST", f"/v2/repository/models/{model}/load", timeout_s, body)

    def unload(self, model: str, timeout_s: float = 5.0) -> Answer:
        """Begin to unload one model: it takes no new request and goes when those under way are answered."""
        return self._ask("POST", f"/v2/repository/models/{model}/unload", timeout_s, {})

    def unloading(self, timeout_s: float = 5.0) -> set[str]:
        """The models that are being unloaded; none where the server does not say."""
        models = self._ask("POST", "/v2/repository/index", timeout_s, {}).document
        rows = models if isinstance(models, list) else []
        return {str(row.get("name")) for row in rows if row.get("state") == "UNLOADING"}

    def _ask(self, method: str, path: str, timeout_s: float, body: dict[str, Any] | None = None) -> Answer:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body))
            response = connection.getresponse()
            return _answer(response.status, response.read())
        except TimeoutError:
            return Answer(0, f"no answer within {timeout_s:g} s", timed_out=True)
        except (OSError, http.client.HTTPException) as error:
            return Answer(0, str(error) or type(error).__name__)
        finally:
            connection.close()


def _answer(status: int, body: bytes) -> Answer:
    """Triton's JSON with its `error`, or the body as it is for a reason."""
    try:
        document = json.loads(body or b"{}")
    except ValueError:
        return Answer(status, body.decode("utf-8", "replace"))
    error = document.get("error", "") if isinstance(document, dict) else ""
    return Answer(status, str(error), document=document)
