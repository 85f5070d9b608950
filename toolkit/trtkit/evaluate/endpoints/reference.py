"""A build's converted checkpoints as an endpoint, executed in this process: no server takes part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtkit.acceptance import summarize
from trtkit.builds import Build
from trtkit.config.schema import BuildConfig
from trtkit.evaluate.endpoints.endpoint import Arrival, EndpointRequest, Generation
from trtkit.reference.draft_target import SpeculativeAnswer, generate_with_draft
from trtkit.reference.engine import Engine
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.request import GenerationRequest
from trtkit.reference.sampling.params import SamplingParams
from trtkit.serving.text import TextTokenizer


@dataclass(frozen=True)
class LoadedModels:
    """The executable parts of a build; draft is None for a build without one."""

    target: Engine
    draft: Engine | None
    tokenizer: TextTokenizer
    end_ids: Sequence[int]
    max_draft_len: int


def load_models(build: Build, end_ids: Sequence[int]) -> LoadedModels:
    """Load checkpoints and tokenizer of a build. Raises CheckpointError when they cannot be executed."""
    # The round that ends an answer verifies a whole draft beyond it.
    room = build.config.limits.max_seq_len + build.config.max_draft_len
    cache = _cache(build.config)
    engines = {
        role: Engine.load(build.checkpoint(role), max_batch_size=1, max_seq_len=room, cache=cache)
        for role in build.config.models
    }
    return LoadedModels(
        target=engines["target"],
        draft=engines.get("draft"),
        tokenizer=TextTokenizer.load(build.tokenizer),
        end_ids=end_ids,
        max_draft_len=build.config.max_draft_len,
    )


def _cache(config: BuildConfig) -> CacheOptions:
    """The cache that the served engine has."""
    sinks = config.attention_sinks if config.attention_sinks and config.attention_sinks.strategy == "engine" else None
    return CacheOptions(
        block_size=config.kv_cache.block_size,
        reuse="tokens" if config.kv_cache.reuse else "off",
        window_tokens=sinks.window_tokens if sinks else None,
        sink_tokens=sinks.sink_tokens if sinks else 0,
    )


class ReferenceEndpoint:
    """Greedy answers of the reference engine, with the tokenizer that the served repository uses. One at a time."""

    def __init__(self, models: LoadedModels, clock_ns: Callable[[], int]) -> None:
        self._models = models
        self._clock_ns = clock_ns
        self._num_requests = 0

    def generate(self, request: EndpointRequest) -> Generation:
        """Generate in this process. Raises RequestError for a prompt that does not fit."""
        models = self._models
        self._num_requests += 1
        prompt_ids = tuple(models.tokenizer.encode(request.text, add_special_tokens=True))
        asked = GenerationRequest(
            request_id=f"request-{self._num_requests}",
            prompt_ids=prompt_ids,
            max_new_tokens=request.max_new_tokens,
            sampling=SamplingParams(top_k=1),
            end_id=models.end_ids[0] if models.end_ids else None,
        )
        sent_ns = self._clock_ns()
        answer = self._answer(asked, models.max_draft_len if request.draft_len is None else request.draft_len)
        done = Arrival(self._clock_ns(), len(answer.token_ids))
        outcomes = summarize(answer.acceptances)
        return Generation(
            token_ids=answer.token_ids,
            sent_ns=sent_ns,
            arrivals=(done,),
            num_draft_tokens=outcomes.num_draft_tokens,
            num_accepted_tokens=outcomes.num_accepted_tokens,
            num_prompt_tokens=len(prompt_ids),
            is_streamed=False,
        )

    def _answer(self, request: GenerationRequest, draft_len: int) -> SpeculativeAnswer:
        if self._models.draft is not None:
            return generate_with_draft(self._models.target, self._models.draft, request, draft_len)
        outputs = self._models.target.generate(request)
        token_ids = tuple(token for output in outputs for token in output.token_ids)
        return SpeculativeAnswer(token_ids, outputs[-1].finish_reason or "length", ())
