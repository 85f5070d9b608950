"""A model behind a stream as an `Llm`: when a call leaves, and what comes back."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from trtkit.serving.contract import llm_contract
from trtkit.serving.conversation import Conversation
from trtkit.serving.inner_llm import InnerLlm
from trtkit.serving.llm_call import LlmCall
from trtkit.serving.tensor import Outputs


class AnsweringStream:
    """Notes each message and answers it with one token."""

    is_settled = True

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def ask(self, message: Any) -> Iterator[Outputs]:
        self.sent.append(message)
        return iter([{"output_ids": np.array([[[7]]]), "sequence_length": np.array([[1]])}])

    def cancel(self) -> None:
        raise AssertionError("nobody cancels")

    def close(self) -> None:
        raise AssertionError("nobody closes")


def test_a_call_is_sent_when_it_is_made_and_not_when_it_is_read() -> None:
    stream = AnsweringStream()
    llm = InnerLlm(Conversation(stream), llm_contract("tensorrt_llm", "1.2.1"), decoupled=True, end_id=2, pad_id=0)
    replies = llm.generate(LlmCall("a", (1, 2, 3), 4))
    assert [message.id for message in stream.sent] == ["a"]
    assert [reply.token_ids for reply in replies] == [(7,)]
    assert len(stream.sent) == 1
