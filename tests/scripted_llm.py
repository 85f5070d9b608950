"""A `tensorrt_llm` model of a few lines, for tests of the draft-target loop. Knows TensorRT-LLM's answers, no text."""

from collections.abc import Callable, Iterator

from trtkit.serving.llm_call import LlmCall
from trtkit.serving.run_scores import LlmReply

END = 99
NextToken = Callable[[tuple[int, ...]], int]


class ScriptedLlm:
    """A model given by its next token; it leaves end ids out, as TensorRT-LLM does, and records what it was asked."""

    def __init__(self, next_token: NextToken, *, chunk: int = 1, shows_end: bool = False) -> None:
        self.next_token = next_token
        self.chunk = chunk
        self.shows_end = shows_end
        self.calls: list[LlmCall] = []
        self.stopped: list[str] = []

    def generate(self, call: LlmCall) -> Iterator[LlmReply]:
        self.calls.append(call)
        tokens = self._verified(call) if call.draft_ids else self._decoded(call, call.max_new_tokens)
        for start in range(0, len(tokens), self.chunk):
            if call.request_id in self.stopped:
                return
            yield LlmReply(tuple(tokens[start : start + self.chunk]))

    def stop(self, request_id: str) -> None:
        self.stopped.append(request_id)

    def _decoded(self, call: LlmCall, count: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < count:
            token = self.next_token((*call.prompt_ids, *tokens))
            if token == END and not self.shows_end:
                return tokens
            tokens.append(token)
            if token == END:
                return tokens
        return tokens

    def _verified(self, call: LlmCall) -> list[int]:
        tokens: list[int] = []
        for draft in (*call.draft_ids, None):
            token = self.next_token((*call.prompt_ids, *tokens))
            if token == END and not self.shows_end:
                return tokens
            tokens.append(token)
            if token != draft:
                return tokens
        return tokens
