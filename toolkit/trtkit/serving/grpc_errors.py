"""Failures of gRPC, or of Triton before any model was asked, as errors of ours. Knows status codes, no connection."""

import re

import grpc

from trtkit.errors import RequestError, ServerError
from trtkit.serving.error_text import error_from_text

# gRPC's own words when a connection is opened to a peer that is silent, says something else, or (Triton's HTTP) leaves.
_NOT_GRPC = re.compile(r"SETTINGS|HTTP/2|failed to connect .*(?:Socket closed|Connection reset|Broken pipe)", re.DOTALL)
_GIVE_ADDRESS = "start one with trtkit serve BUILD, or give its grpc://host:port"
_GIVE_PORT = "give Triton's gRPC port as grpc://host:port, or its HTTP port as http://host:port"


def answer_error(error: grpc.RpcError, address: str, *, deadline_s: float | None) -> RequestError | ServerError:
    """What went wrong with an answer; deadline_s is what it was given."""
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.UNAVAILABLE:
        return _unreachable(address, details)
    if code == grpc.StatusCode.DEADLINE_EXCEEDED and deadline_s is not None:
        return ServerError(
            f"the server at {address} was not done after {deadline_s:g} s",
            "ask for fewer tokens, or allow more time",
            code="DEADLINE",
        )
    return error_from_text(details, source=f"{address} ({code.name})")


def question_error(error: grpc.RpcError, address: str, *, timeout_s: float) -> RequestError | ServerError:
    """What went wrong with a question about the server itself, which takes no time to answer."""
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        cause = f"what speaks gRPC at {address} is no Triton server: {error.details()}"
        return ServerError(cause, _GIVE_PORT, code="SERVER-UNREACHABLE")
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServerError(
            f"the server at {address} did not say within {timeout_s:g} s which models are ready",
            "see its log: it hangs, or nothing there speaks gRPC; start it again, or give another address",
            code="SERVER-UNREACHABLE",
        )
    return answer_error(error, address, deadline_s=None)


def _unreachable(address: str, details: str) -> ServerError:
    if _NOT_GRPC.search(details):
        return ServerError(f"nothing at {address} speaks gRPC: {details}", _GIVE_PORT, code="SERVER-UNREACHABLE")
    return ServerError(
        f"no Triton server answers at {address}, or it went away: {details}", _GIVE_ADDRESS, code="SERVER-UNREACHABLE"
    )
