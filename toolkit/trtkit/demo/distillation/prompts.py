"""The prompts that the target answers for its draft's lessons. Knows the chat template, no model and no answers."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

_WORDS: dict[str, Any] = json.loads(Path(__file__).with_name("prompts.json").read_text(encoding="utf-8"))
# Kind of prompt -> its share of the lessons.
_SHARES = {"request": 0.66, "code": 0.08, "sum": 0.05, "follow_up": 0.05, "opening": 0.16}
_MESSAGES_WITHOUT_TEMPLATE = 0.15


class PromptMaker:
    """Draws prompts from templates and topics, the same ones for the same seed."""

    def __init__(self, checkpoint: Path, seed: int, *, held_out: bool = False) -> None:
        """held_out draws from topics that no lesson is about."""
        self._tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
        self._random = random.Random(seed)
        self._topics = _WORDS["held_out_topic" if held_out else "topic"]
        self._makers: dict[str, Callable[[], list[dict[str, str]]]] = {
            "request": self._request,
            "code": self._code,
            "sum": self._sum,
            "follow_up": self._follow_up,
        }

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        while True:
            yield self.draw()

    def draw(self) -> tuple[int, ...]:
        """The token ids of one prompt."""
        kind = self._random.choices(list(_SHARES), list(_SHARES.values()))[0]
        if kind == "opening":
            text = self._fill(self._pick("opening"))
        else:
            text = self._render(self._makers[kind]())
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _render(self, messages: list[dict[str, str]]) -> str:
        """The chat template, mostly; it adds a system message of its own, which some clients leave out."""
        system = self._pick("system")
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        elif self._random.random() < _MESSAGES_WITHOUT_TEMPLATE:
            turns = (f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages)
            return "".join(turns) + "<|im_start|>assistant\n"
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _request(self) -> list[dict[str, str]]:
        return [_user(self._fill(self._pick("request")))]

    def _code(self) -> list[dict[str, str]]:
        task, base = self._pick("task")
        return [_user(self._pick("code").format(task=task, task_base=base))]

    def _sum(self) -> list[dict[str, str]]:
        a, b, c = self._random.randint(12, 60), self._random.randint(2, 11), self._random.randint(2, 20)
        return [_user(self._pick("sum").format(a=a, b=b, c=c, things=self._pick("things")))]

    def _follow_up(self) -> list[dict[str, str]]:
        country, capital = self._pick("capital")
        question, answer = f"What is the capital of {country}?", f"The capital of {country} is {capital}."
        return [_user(question), {"role": "assistant", "content": answer}, _user(self._pick("follow_up"))]

    def _fill(self, template: str) -> str:
        topic, other = self._random.sample(self._topics, 2)
        return template.format(topic=topic, other=other, Topic=topic[0].upper() + topic[1:])

    def _pick(self, key: str) -> Any:
        return self._random.choice(_WORDS[key])


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}
