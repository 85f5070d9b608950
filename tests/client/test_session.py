"""A chat session against a client of a few lines: history, forgetting, stopping, statistics."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from trtkit.client.request import Chunk, Figures, GenerateRequest
from trtkit.client.session import ChatSession
from trtkit.errors import RequestError, ServerError

FIGURES = Figures("length", 7, 2, 1, 4, 3, 0.75, 1.0, 2.0, num_evicted_tokens=5, num_reused_blocks=2)
TOO_LONG = RequestError("too long", "shorten it", code="REQ-LENGTH")


class Terminated(KeyboardInterrupt):
    """As the command line raises it for SIGTERM."""


@dataclass
class ScriptedAnswer:
    """Two chunks, or an error before them, or an interrupt between them."""

    error: BaseException | None = None
    interrupt: BaseException | None = None
    sent_ns: int = 0
    was_cancelled: bool = False

    def __iter__(self) -> Iterator[Chunk]:
        if self.error is not None:
            raise self.error
        yield Chunk("he", (1,), 1_000_000)
        if self.interrupt is not None:
            raise self.interrupt
        yield Chunk("llo", (2,), 3_000_000, FIGURES)

    def cancel(self) -> None:
        self.was_cancelled = True


@dataclass
class ScriptedClient:
    """Gives its answers in order, then plain ones, and keeps the messages it was sent."""

    answers: list[ScriptedAnswer] = field(default_factory=list)
    sent: list[list[dict[str, str]]] = field(default_factory=list)

    def __enter__(self) -> "ScriptedClient":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def check_ready(self, model: str = "") -> None:
        pass

    def generate(self, request: GenerateRequest) -> ScriptedAnswer:
        assert request.is_chat
        self.sent.append(json.loads(request.text))
        return self.answers.pop(0) if self.answers else ScriptedAnswer()


def session(client: ScriptedClient, system: str | None = None) -> ChatSession:
    return ChatSession(client, GenerateRequest("", 9), system)


def contents(messages: list[dict[str, str]]) -> list[str]:
    return [message["content"] for message in messages]


def test_every_turn_sends_the_history_with_its_roles() -> None:
    client, shown = ScriptedClient(), []
    chat = session(client, system="be short")
    chat.say("one", shown.append)
    chat.say("two", shown.append)
    assert [message["role"] for message in client.sent[1]] == ["system", "user", "assistant", "user"]
    assert contents(client.sent[1]) == ["be short", "one", "hello", "two"]
    assert shown == ["he", "llo", "he", "llo"]


def test_a_new_history_keeps_the_system_message() -> None:
    client = ScriptedClient()
    chat = session(client, system="be short")
    chat.say("one", len)
    chat.restart()
    chat.say("two", len)
    assert contents(client.sent[1]) == ["be short", "two"]


def test_a_stopped_answer_is_cancelled_and_stays_in_the_history_as_far_as_it_came() -> None:
    stopped = ScriptedAnswer(interrupt=KeyboardInterrupt())
    client = ScriptedClient([stopped])
    chat = session(client)
    turn = chat.say("one", len)
    assert stopped.was_cancelled and turn.was_stopped
    chat.say("two", len)
    assert contents(client.sent[1]) == ["one", "he", "two"]
    assert chat.statistics()["stopped"] == 1


def test_the_end_of_the_process_is_not_taken_for_a_stopped_answer() -> None:
    ended = ScriptedAnswer(interrupt=Terminated())
    with pytest.raises(Terminated):
        session(ScriptedClient([ended])).say("one", len)
    assert ended.was_cancelled


def test_a_history_that_the_server_refuses_is_halved_until_it_fits() -> None:
    client = ScriptedClient()
    chat = session(client, system="be short")
    for number in range(4):
        chat.say(f"q{number}", len)
    client.answers = [ScriptedAnswer(TOO_LONG), ScriptedAnswer(TOO_LONG)]
    chat.say("q4", len)
    assert contents(client.sent[-2]) == ["be short", "q2", "hello", "q3", "hello", "q4"]
    assert contents(client.sent[-1]) == ["be short", "q3", "hello", "q4"]
    assert chat.statistics()["forgotten_turns"] == 3


def test_a_message_that_is_too_long_by_itself_is_the_servers_error() -> None:
    with pytest.raises(RequestError, match="REQ-LENGTH"):
        session(ScriptedClient([ScriptedAnswer(TOO_LONG)])).say("long", len)


def test_a_turn_that_fails_leaves_the_history_as_it_was() -> None:
    client = ScriptedClient([ScriptedAnswer(ServerError("gone", "start it"))])
    chat = session(client)
    with pytest.raises(ServerError):
        chat.say("one", len)
    chat.say("two", len)
    assert contents(client.sent[1]) == ["two"]


def test_statistics_sum_what_the_answers_said() -> None:
    chat = session(ScriptedClient())
    assert chat.statistics()["acceptance_rate"] is None
    chat.say("one", len)
    chat.say("two", len)
    found = chat.statistics()
    assert (found["turns"], found["output_tokens"], found["prompt_tokens"], found["evicted_tokens"]) == (2, 4, 7, 10)
    assert (found["draft_tokens"], found["accepted_draft_tokens"], found["acceptance_rate"]) == (8, 6, 0.75)
    assert (found["reused_blocks"], found["last_ttft_ms"], found["median_tpot_ms"]) == (4, 1.0, 2.0)
