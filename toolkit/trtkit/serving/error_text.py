"""Errors that cross a process as text: back to what they were. Knows how TrtkitError prints itself, nothing else."""

import re

from trtkit.errors import RequestError, ServerError

# "CODE: cause\nFix: fix"; Triton puts the name of an ensemble in front.
_PRINTED = re.compile(
    r"^(?:in ensemble '[^']*', )?(?:(?P<code>[A-Z][A-Z0-9-]+): )?(?P<cause>.*)\nFix: (?P<fix>.*)$", re.DOTALL
)
# Triton's own words for a model that is not loaded, or that is leaving.
_NOT_LOADED = re.compile(r"Request for unknown model: '(?P<model>[^']*)'")
_OF_THE_REQUEST = ("REQ-", "SPEC-", "CHAT-")


def error_from_text(text: str, *, source: str) -> RequestError | ServerError:
    """The error behind a model's message; `source` names who sent it where the message is Triton's own."""
    absent = _NOT_LOADED.match(text.strip())
    if absent is not None:
        return ServerError(
            f"{source}: the server has no model {absent['model']} that takes requests; it may be on its way up or down",
            "ask again when it is ready, or start it with trtkit serve BUILD",
            code="MODEL-NOT-READY",
        )
    printed = _PRINTED.match(text.strip())
    if printed is None:
        return ServerError(f"{source}: {text.strip() or 'no reason given'}", "see the server's log", code="SERVER")
    code = printed["code"]
    kind = RequestError if code and code.startswith(_OF_THE_REQUEST) else ServerError
    return kind(printed["cause"], printed["fix"], code=code)
