"""BeamEngine: an engine that also answers requests with several beams. Knows which inner request is which beam.

A beam's step is a request of one token whose prompt is prompt and beam so far. The engine finds its cache by prefix, so
beams share what they have in common, and steps of several searches and of other requests run in the same passes.
"""

from dataclasses import dataclass, field, replace

from trtkit.errors import RequestError
from trtkit.reference.beam_search import BeamSearch
from trtkit.reference.engine import Engine
from trtkit.reference.request import Beam, FinishReason, FloatArray, GenerationRequest, Returns, StepOutput
from trtkit.reference.sampling.params import SamplingParams


@dataclass
class _Search:
    """One request with beams; `logits` has those of the step under way that have arrived, by the beam's number."""

    request: GenerationRequest
    beams: BeamSearch
    inner_ids: tuple[str, ...] = ()
    context_logits: FloatArray | None = None
    logits: dict[int, FloatArray] = field(default_factory=dict)
    num_steps: int = 0
    num_reused: int = 0


class BeamEngine:
    """Hands requests without beams to the engine as they are. Like it, not safe for threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._searches: dict[str, _Search] = {}
        self._owners: dict[str, tuple[str, int]] = {}
        self._reports: list[StepOutput] = []

    @property
    def has_work(self) -> bool:
        """A call of step would do or report something."""
        return bool(self._reports) or self._engine.has_work

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. The answer with beams comes in one StepOutput, at its end.

        Raises RequestError when it can never be answered.
        """
        if request.request_id in self._searches:
            raise RequestError(
                f"request id {request.request_id!r} is already in flight", "use another id", code="REQ-DUPLICATE"
            )
        if request.beam is None:
            self._engine.submit(request)
            return
        request.beam.check()
        if request.draft_ids:
            raise RequestError("beam search takes no drafts", "leave the draft or the beams out", code="REQ-BEAM")
        self._engine.validate(replace(request, beam=None))
        self._searches[request.request_id] = _Search(request, BeamSearch(request))
        self._submit_beams(self._searches[request.request_id])

    def cancel(self, request_id: str) -> bool:
        """End a request now; the next step reports it. False when no such request is in flight."""
        search = self._searches.get(request_id)
        if search is None:
            return self._engine.cancel(request_id)
        self._forget(search)
        self._reports.append(_report(search, StepOutput(request_id, (), True, "cancelled", 0, 0)))
        return True

    def step(self) -> list[StepOutput]:
        """One pass of the engine."""
        outputs = []
        for output in self._engine.step():
            owner = self._owners.pop(output.request_id, None)
            if owner is not None:
                self._take(self._searches[owner[0]], owner[1], output)
            elif not output.request_id.startswith(_INNER):
                outputs.append(output)
        reports, self._reports = self._reports, []
        return [*reports, *outputs]

    def _submit_beams(self, search: _Search) -> None:
        search.num_steps += 1
        search.logits = {}
        name, wants_context = search.request.request_id, search.request.returns.context_logits
        returns = Returns(generation_logits=True, context_logits=wants_context and search.num_steps == 1)
        search.inner_ids = tuple(
            f"{_INNER}{name} {search.num_steps} {number}" for number in range(len(search.beams.running))
        )
        for number, (inner_id, beam) in enumerate(zip(search.inner_ids, search.beams.running, strict=True)):
            self._owners[inner_id] = (name, number)
            prompt_ids = (*search.request.prompt_ids, *beam.token_ids)
            self._engine.submit(GenerationRequest(inner_id, prompt_ids, 1, SamplingParams(), returns=returns))

    def _take(self, search: _Search, number: int, output: StepOutput) -> None:
        """Note one beam's logits; with the last of them, advance the search."""
        if output.error is not None:
            self._forget(search)
            self._reports.append(_report(search, output))
            return
        assert output.generation_logits is not None
        if search.num_steps == 1:
            search.num_reused, search.context_logits = output.num_reused_tokens, output.context_logits
        search.logits[number] = output.generation_logits[0]
        if len(search.logits) < len(search.beams.running):
            return
        try:
            search.beams.advance([search.logits[beam] for beam in range(len(search.logits))])
        except RequestError as error:
            self._forget(search)
            self._reports.append(_report(search, replace(output, token_ids=(), finish_reason="error", error=error)))
            return
        if not search.beams.is_done:
            self._submit_beams(search)
            return
        self._forget(search)
        beams = search.beams.beams()
        reason = _finish_reason(search.request, beams[0])
        done = StepOutput(search.request.request_id, beams[0].token_ids, True, reason, 0, 0, beams=beams)
        self._reports.append(_report(search, done))

    def _forget(self, search: _Search) -> None:
        del self._searches[search.request.request_id]
        for inner_id in search.inner_ids:
            self._owners.pop(inner_id, None)
            self._engine.cancel(inner_id)


# In front of the ids of inner requests; what is reported for those that were cancelled is of no interest.
_INNER = "\0beam "


def _report(search: _Search, output: StepOutput) -> StepOutput:
    return replace(
        output,
        request_id=search.request.request_id,
        num_prompt_tokens=len(search.request.prompt_ids),
        num_reused_tokens=search.num_reused,
        context_logits=search.context_logits,
    )


def _finish_reason(request: GenerationRequest, beam: Beam) -> FinishReason:
    if beam.token_ids[-1] == request.end_id:
        return "end_id"
    return "length" if len(beam.token_ids) >= request.max_new_tokens else "stop_words"
