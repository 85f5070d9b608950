"""The Triton model `preprocessing`: text and words to the engine's tensors. Knows tensors, leaves text to `text`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtkit.errors import RequestError, TrtkitError
from trtkit.serving.arguments import read_arguments
from trtkit.serving.contract import CHAT_PARAMETER, NOT_PREPROCESSED, PREPROCESSING, contracts
from trtkit.serving.inputs import Inputs
from trtkit.serving.prompts import Prompts
from trtkit.serving.tensor import Array
from trtkit.serving.text import TextTokenizer
from trtkit.serving.triton_io import answer, read_inputs, refuse
from trtkit.serving.word_lists import embedding_bias, word_tokens
from trtkit.serving.words import pack_words, stack_words


class Preprocessor:
    """TritonPythonModel of `preprocessing`."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the tokenizer."""
        arguments = read_arguments(args)
        self._contract = contracts("1.2.1", with_draft=False)[PREPROCESSING]
        folder = arguments.path("tokenizer_dir")
        self._tokenizer = TextTokenizer.load(folder)
        adds_special = arguments.flag("add_special_tokens", default=True)
        self._prompts = Prompts(folder, self._tokenizer, add_special_tokens=adds_special)
        self._end_ids = arguments.numbers("end_ids")
        self._pad_id = arguments.number("pad_id")
        self._vocab_size = arguments.number("vocab_size")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            return answer(self._outputs(read_inputs(request, self._contract)), self._contract)
        except TrtkitError as error:
            return refuse(error)

    def _outputs(self, inputs: Inputs) -> dict[str, Array]:
        refuse_unserved(inputs, NOT_PREPROCESSED)
        rows = range(inputs.num_rows)
        is_chat = inputs.flag(CHAT_PARAMETER)
        texts = [self._prompts.text(inputs.text("QUERY", row) or "", is_chat=is_chat) for row in rows]
        prompts = [self._prompts.encode(text, is_chat=is_chat) for text in texts]
        if not all(prompts):
            raise RequestError("input QUERY (text_input) holds no token", "send a prompt", code="REQ-EMPTY")
        lengths = [inputs.value("REQUEST_OUTPUT_LEN", row) for row in rows]
        if min(lengths) < 1:
            raise RequestError(
                f"input REQUEST_OUTPUT_LEN (max_tokens) must be at least 1, got {min(lengths)}",
                "ask for a token",
                code="REQ-TOKENS",
            )
        given_ends = [inputs.value("END_ID", row) for row in rows]
        given_pads = [inputs.value("PAD_ID", row) for row in rows]
        pads = [self._pad_id if pad is None else pad for pad in given_pads]
        width = max(len(prompt) for prompt in prompts)
        return {
            "INPUT_ID": np.array(
                [prompt + [pad] * (width - len(prompt)) for prompt, pad in zip(prompts, pads, strict=True)]
            ),
            "REQUEST_INPUT_LEN": np.array([[len(prompt)] for prompt in prompts]),
            "REQUEST_OUTPUT_LEN": np.array([[length] for length in lengths]),
            "BAD_WORDS_IDS": self._words(inputs, "BAD_WORDS_DICT", [()] * len(rows)),
            "STOP_WORDS_IDS": self._words(inputs, "STOP_WORDS_DICT", [self._other_ends(end) for end in given_ends]),
            "OUT_END_ID": np.array([[self._end_ids[0] if end is None else end] for end in given_ends]),
            "OUT_PAD_ID": np.array([[pad] for pad in pads]),
            **self._bias(inputs),
        }

    def _other_ends(self, given: int | None) -> tuple[int, ...]:
        """The engine knows one end id; the others end an answer as stop words of one token."""
        return self._end_ids[1:] if given is None else ()

    def _words(self, inputs: Inputs, name: str, more: Sequence[Sequence[int]]) -> Array:
        packed = []
        for row, single_tokens in enumerate(more):
            words = word_tokens(self._tokenizer, inputs.texts(name, row))
            packed.append(pack_words([*words, *([token] for token in single_tokens)]))
        return stack_words(packed)

    def _bias(self, inputs: Inputs) -> dict[str, Array]:
        """EMBEDDING_BIAS where the request has words for it; rows without any get zeros."""
        rows = [
            embedding_bias(
                self._tokenizer,
                *inputs.weighted_texts("EMBEDDING_BIAS_WORDS", "EMBEDDING_BIAS_WEIGHTS", row),
                self._vocab_size,
            )
            for row in range(inputs.num_rows)
        ]
        if all(row is None for row in rows):
            return {}
        return {"EMBEDDING_BIAS": np.stack([np.zeros(self._vocab_size) if row is None else row for row in rows])}


def refuse_unserved(inputs: Inputs, names: Sequence[str]) -> None:
    """Raise RequestError naming the first input that this model has for compatibility and does not honour."""
    for name in names:
        if name in inputs:
            raise RequestError(f"input {name} is not served by trtkit's models", "leave it out", code="REQ-UNSERVED")
