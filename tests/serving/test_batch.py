"""Several rows, one way back: every response says its row, and only the last of all is final."""

import pytest
from trtkit.errors import RequestError, TrtkitError
from trtkit.serving.batch import refuse_batch, replies_of
from trtkit.serving.tensor import Outputs


class Sender:
    def __init__(self) -> None:
        self.sent: list[tuple[int | None, bool]] = []

    def send(self, outputs: Outputs, *, final: bool) -> None:
        index = outputs.get("batch_index")
        self.sent.append((None if index is None else int(index[0, 0]), final))

    def fail(self, error: TrtkitError, *, final: bool = True) -> None:
        self.sent.append((None, final))

    def is_cancelled(self) -> bool:
        return True


def test_a_single_row_keeps_the_sender_as_it_is() -> None:
    sender = Sender()
    assert replies_of(sender, [(0, 0)]) == [sender]


def test_the_last_rows_last_response_is_the_final_one() -> None:
    sender = Sender()
    first, second = replies_of(sender, [(0, 0), (1, 0)])
    first.send({}, final=False)
    second.send({}, final=True)
    first.send({}, final=True)
    assert sender.sent == [(0, False), (1, False), (0, True)]
    assert first.is_cancelled()


def test_sequences_of_a_row_say_which_they_are() -> None:
    sent: list[Outputs] = []

    class Keeper(Sender):
        def send(self, outputs: Outputs, *, final: bool) -> None:
            sent.append(outputs)

    for reply in replies_of(Keeper(), [(0, 0), (0, 1), (1, 0), (1, 1)]):
        reply.send({}, final=True)
    found = [(int(outputs["batch_index"][0, 0]), int(outputs["sequence_index"][0, 0])) for outputs in sent]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_row_that_fails_does_not_end_the_others() -> None:
    sender = Sender()
    first, second = replies_of(sender, [(0, 0), (1, 0)])
    first.fail(RequestError("a", "b"))
    second.send({}, final=True)
    assert sender.sent == [(None, False), (1, True)]


def test_one_response_cannot_hold_several_rows() -> None:
    refuse_batch(1, decoupled=False)
    refuse_batch(3, decoupled=True)
    with pytest.raises(RequestError, match="REQ-BATCH: the request asks for 3 answers"):
        refuse_batch(3, decoupled=False)
