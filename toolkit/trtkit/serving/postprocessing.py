"""The Triton model `postprocessing`: the engine's tokens to text. Knows tensors, leaves text to `text`.

It sees one response at a time. A client that streams through the ensemble gets the text of each response on its own;
exact streamed text comes from the BLS model, which remembers what it held back.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtkit.errors import RequestError, TrtkitError
from trtkit.serving.arguments import read_arguments
from trtkit.serving.contract import POSTPROCESSING, contracts
from trtkit.serving.inputs import Inputs
from trtkit.serving.tensor import Array
from trtkit.serving.text import TextTokenizer
from trtkit.serving.triton_io import answer, read_inputs, refuse


class Postprocessor:
    """TritonPythonModel of `postprocessing`."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the tokenizer."""
        arguments = read_arguments(args)
        self._contract = contracts("1.2.1", with_draft=False)[POSTPROCESSING]
        self._tokenizer = TextTokenizer.load(arguments.path("tokenizer_dir"))
        self._skip_special_tokens = arguments.flag("skip_special_tokens", default=True)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            inputs = read_inputs(request, self._contract)
            texts = [self._beam_texts(inputs, row) for row in range(inputs.num_rows)]
            return answer({"OUTPUT": np.array(texts, dtype=np.object_)}, self._contract)
        except TrtkitError as error:
            return refuse(error)

    def _beam_texts(self, inputs: Inputs, row: int) -> list[bytes]:
        """One text per beam: the tokens up to the beam's length."""
        beams, lengths = inputs.array("TOKENS_BATCH", row), inputs.array("SEQUENCE_LENGTH", row)
        assert beams is not None and lengths is not None, "both are required inputs"
        if len(lengths) != len(beams) or np.any(lengths < 0) or np.any(lengths > beams.shape[1]):
            raise RequestError(
                f"input SEQUENCE_LENGTH is {lengths.tolist()}, TOKENS_BATCH has {len(beams)} rows of {beams.shape[1]}",
                "send the number of tokens of each row",
                code="REQ-INPUT",
            )
        return [self._text(beam[:length]) for beam, length in zip(beams, lengths, strict=True)]

    def _text(self, token_ids: Array) -> bytes:
        text = self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=self._skip_special_tokens)
        return text.encode()
