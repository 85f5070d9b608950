"""A chat over many turns: the history, the answers and what they cost. Knows messages, no terminal and no transport."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trtkit.client.completion import Completion, completion_of
from trtkit.client.connect import Client
from trtkit.client.request import Chunk, GenerateRequest
from trtkit.errors import RequestError

_TOO_LONG = "REQ-LENGTH"


@dataclass(frozen=True)
class Turn:
    """A message of the user and its answer; text is what came until the end, or until the answer was stopped."""

    question: str
    text: str
    completion: Completion | None

    @property
    def was_stopped(self) -> bool:
        """Whether the user stopped the answer: then there are no figures."""
        return self.completion is None


class ChatSession:
    """One history on one server. `options` is the request whose text each turn replaces.

    Every turn sends the whole history, and the server finds its keys and values again by prefix. Where the build keeps
    a rolling window the server drops what is older than it; where it does not, the session forgets the older half of
    its turns as soon as the server refuses the length, so that it too can go on for ever. A system message stays.
    """

    def __init__(self, client: Client, options: GenerateRequest, system: str | None = None) -> None:
        self._client = client
        self._options = replace(options, is_chat=True, wants_cache_figures=True)
        self.system = system
        self.turns: list[Turn] = []
        self.num_forgotten = 0
        self._first_sent = 0

    def restart(self) -> None:
        """Forget every turn; the system message stays."""
        self._first_sent = len(self.turns)

    def say(self, question: str, on_text: Callable[[str], object]) -> Turn:
        """Ask and read the answer, which a KeyboardInterrupt stops; the turn holds what came until then.

        Raises what an answer raises; the history is then as it was before.
        """
        while True:
            try:
                turn = self._ask(question, on_text)
            except RequestError as error:
                if error.code != _TOO_LONG or not self._forget():
                    raise
                continue
            self.turns.append(turn)
            return turn

    def statistics(self) -> dict[str, Any]:
        """The document of /stats and of --json: sums over the answers that came to their end."""
        ended = [turn.completion for turn in self.turns if turn.completion is not None]
        figures = [completion.figures for completion in ended]
        drafted = sum(each.num_draft_tokens for each in figures)
        accepted = sum(each.num_accepted_tokens for each in figures)
        speeds = sorted(completion.tpot_ms for completion in ended if completion.tpot_ms is not None)
        return {
            "turns": len(self.turns),
            "stopped": sum(turn.was_stopped for turn in self.turns),
            "forgotten_turns": self.num_forgotten,
            "prompt_tokens": figures[-1].num_prompt_tokens if figures else 0,
            "output_tokens": sum(each.num_output_tokens for each in figures),
            "evicted_tokens": sum(each.num_evicted_tokens for each in figures),
            "reused_blocks": sum(each.num_reused_blocks or 0 for each in figures),
            "draft_tokens": drafted,
            "accepted_draft_tokens": accepted,
            "acceptance_rate": accepted / drafted if drafted else None,
            "last_ttft_ms": ended[-1].ttft_ms if ended else None,
            "median_tpot_ms": speeds[len(speeds) // 2] if speeds else None,
        }

    def messages(self, question: str) -> list[dict[str, str]]:
        """What the next turn sends."""
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self.turns[self._first_sent :]:
            messages += [
                {"role": "user", "content": turn.question},
                {"role": "assistant", "content": turn.text},
            ]
        return [*messages, {"role": "user", "content": question}]

    def _ask(self, question: str, on_text: Callable[[str], object]) -> Turn:
        text = json.dumps(self.messages(question), ensure_ascii=False)
        answer = self._client.generate(replace(self._options, text=text))
        chunks: list[Chunk] = []
        try:
            for chunk in answer:
                chunks.append(chunk)
                on_text(chunk.text)
        except KeyboardInterrupt as interrupt:
            answer.cancel()
            if type(interrupt) is not KeyboardInterrupt:
                raise  # not the user's Ctrl-C: the whole process is asked to end
            return Turn(question, "".join(chunk.text for chunk in chunks), None)
        completion = completion_of(chunks, answer.sent_ns)
        return Turn(question, completion.text, completion)

    def _forget(self) -> bool:
        """Leave out the older half of the turns that are sent; false when there is none."""
        num_sent = len(self.turns) - self._first_sent
        self._first_sent += (num_sent + 1) // 2
        self.num_forgotten += (num_sent + 1) // 2
        return num_sent > 0
