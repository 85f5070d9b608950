"""Errors that crossed a process are what they were."""

import pytest
from trtkit.errors import InputError, RequestError, ServerError, TrtkitError
from trtkit.serving.error_text import error_from_text


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (RequestError("input a is wrong", "mend it", code="REQ-INPUT"), RequestError),
        (InputError("too many", "send fewer", code="SPEC-K"), RequestError),
        (ServerError("gone", "start it", code="INNER-MODEL"), ServerError),
        (TrtkitError("no code: at all", "mend it"), ServerError),
    ],
)
@pytest.mark.parametrize("prefix", ["", "in ensemble 'ensemble', "])
def test_an_error_of_ours_comes_back_with_cause_fix_and_code(sent: TrtkitError, kind: type, prefix: str) -> None:
    received = error_from_text(prefix + str(sent), source="model")
    assert type(received) is kind
    assert (received.fix, received.code) == (sent.fix, sent.code)
    assert received.cause.endswith(sent.cause)


def test_a_foreign_message_names_its_source() -> None:
    received = error_from_text("Stub process 'x_0_0' is not healthy.", source="tensorrt_llm")
    assert isinstance(received, ServerError)
    assert received.cause == "tensorrt_llm: Stub process 'x_0_0' is not healthy."


def test_a_model_that_is_not_loaded_is_named() -> None:
    error = error_from_text("Request for unknown model: 'draft' has no available versions", source="bls")
    assert (type(error), error.code) == (ServerError, "MODEL-NOT-READY")
    assert "bls: the server has no model draft" in error.cause
