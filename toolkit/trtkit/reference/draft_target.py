"""Speculative decoding in one process, for one request or many: propose, verify, accept. Knows no acceptance rule.

Every round drafts for all sequences that are due, each with its own length, then the target takes one step: sequences
with a draft verify it, the others decode one token. The target's cache is rewound by the engine, the draft's by prefix.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from trtkit.acceptance import Acceptance
from trtkit.draft_length import DraftLength, FixedDraftLength
from trtkit.errors import RequestError, TrtkitError
from trtkit.reference.engine import Engine
from trtkit.reference.proposal import EngineProposer, Proposal, Proposer
from trtkit.reference.request import FinishReason, GenerationRequest, StepOutput


@dataclass(frozen=True)
class SpeculativeAnswer:
    """The answer's tokens, why it ended, and one Acceptance for every step that verified a draft.

    steps are the target's outputs, with the scores that the request's `returns` asks for.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    acceptances: tuple[Acceptance, ...]
    error: TrtkitError | None = None
    steps: tuple[StepOutput, ...] = ()


@dataclass
class _Running:
    """One answer in the making. num_plain: steps that the target still takes alone before a length is asked for."""

    request: GenerationRequest
    length: DraftLength
    token_ids: list[int] = field(default_factory=list)
    steps: list[StepOutput] = field(default_factory=list)
    num_plain: int = 0
    plain_ns: int = 0
    num_plain_done: int = 0
    draft_ns: int = 0
    is_submitted: bool = False
    is_due: bool = True
    finish_reason: FinishReason | None = None
    error: TrtkitError | None = None

    @property
    def num_left(self) -> int:
        return self.request.max_new_tokens - len(self.token_ids)

    def rest(self) -> GenerationRequest:
        """The request that continues the answer."""
        return replace(
            self.request,
            prompt_ids=(*self.request.prompt_ids, *self.token_ids),
            max_new_tokens=self.num_left,
            min_new_tokens=max(self.request.min_new_tokens - len(self.token_ids), 0),
        )

    def wanted(self) -> int:
        """Draft tokens for the next step; the last token of an answer is always left to the target."""
        if self.num_plain > 0:
            return 0
        length = min(self.length.next(), self.num_left - 1)
        if length <= 0:
            self.num_plain, self.plain_ns, self.num_plain_done = self.length.plain_tokens() or self.num_left, 0, 0
        return max(length, 0)

    def take(self, output: StepOutput, target_ns: int) -> None:
        """Note what a step of the target brought."""
        self.token_ids.extend(output.token_ids)
        self.steps.append(output)
        self.is_due = True
        self.finish_reason, self.error = output.finish_reason, output.error
        if output.acceptance is not None:
            self.length.observe_draft(output.acceptance, self.draft_ns, target_ns)
            return
        self.plain_ns, self.num_plain_done = self.plain_ns + target_ns, self.num_plain_done + len(output.token_ids)
        self.num_plain -= len(output.token_ids)
        if self.num_plain <= 0 or self.finish_reason is not None:
            self.length.observe_plain(self.num_plain_done, self.plain_ns)

    def answer(self) -> SpeculativeAnswer:
        reason = self.finish_reason or "length"
        acceptances = tuple(step.acceptance for step in self.steps if step.acceptance is not None)
        return SpeculativeAnswer(tuple(self.token_ids), reason, acceptances, self.error, tuple(self.steps))


def generate_with_draft(
    target: Engine, draft: Engine, request: GenerationRequest, max_draft_len: int, *, by_logits: bool = False
) -> SpeculativeAnswer:
    """Answer `request` with the target's tokens, up to max_draft_len of them proposed by the draft in every round.

    By tokens, the tokens are those of target.generate(request), for sampling too: both models draw with the same
    number at a position, and the target's draw is what is kept. by_logits, they have the same distribution, and more
    of them are accepted. With max_draft_len 0 the draft is not used.
    Raises RequestError when the request is impossible, or when one of the engines is answering another.
    """
    target.validate(request)
    proposer = EngineProposer(draft, target.vocab_size, with_logits=by_logits)
    [answer] = speculate(target, proposer, [(request, FixedDraftLength(max_draft_len))])
    if answer.error is not None:
        raise answer.error
    return answer


def speculate(
    target: Engine,
    proposer: Proposer,
    requests: Sequence[tuple[GenerationRequest, DraftLength]],
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> list[SpeculativeAnswer]:
    """Answer many requests at once, each with a draft length of its own; the answers are in the order of the requests.

    A request that cannot be answered, or that fails on its way, ends with its error alone.
    Raises RequestError REQ-BUSY when the target is answering others, whose outputs would be lost.
    """
    if target.has_work:
        raise RequestError("the engine is answering other requests", "use an engine of its own", code="REQ-BUSY")
    running = [_Running(replace(request, request_id=str(i)), length) for i, (request, length) in enumerate(requests)]
    try:
        _run(target, proposer, running, clock_ns)
    except BaseException:
        target.drop_all()
        raise
    return [each.answer() for each in running]


def _run(target: Engine, proposer: Proposer, running: list[_Running], clock_ns: Callable[[], int]) -> None:
    """Draft and step until every answer has ended."""
    while any(each.finish_reason is None for each in running):
        _draft(target, proposer, [each for each in running if each.is_due and each.finish_reason is None], clock_ns)
        started_ns = clock_ns()
        outputs: list[StepOutput] = target.step() if target.has_work else []
        elapsed_ns = clock_ns() - started_ns
        for output in outputs:
            if (each := running[int(output.request_id)]).finish_reason is None:
                each.take(output, elapsed_ns)


def _draft(target: Engine, proposer: Proposer, due: list[_Running], clock_ns: Callable[[], int]) -> None:
    """Propose for the sequences whose step is next, and hand the drafts to the target."""
    wanted = [(each, length) for each in due if (length := each.wanted()) > 0]
    started_ns = clock_ns()
    proposals = proposer.propose([(each.rest(), length) for each, length in wanted]) if wanted else []
    elapsed_ns = clock_ns() - started_ns
    by_request = {id(each): proposal for (each, _), proposal in zip(wanted, proposals, strict=True)}
    for each in due:
        proposal, each.draft_ns, each.is_due = by_request.get(id(each), Proposal()), elapsed_ns, False
        if not proposal.draft_ids:
            each.num_plain = max(each.num_plain, 1)
        _hand_over(target, each, proposal)


def _hand_over(target: Engine, running: _Running, proposal: Proposal) -> None:
    """The first draft goes with the request, later ones are attached."""
    request, draft_ids = running.request, proposal.draft_ids
    draft_logits = proposal.draft_logits[: len(draft_ids)] if proposal.draft_logits is not None else None
    try:
        if not running.is_submitted:
            running.is_submitted = True
            target.submit(replace(request, draft_ids=draft_ids, draft_logits=draft_logits))
        elif draft_ids:
            target.attach_draft(request.request_id, draft_ids, draft_logits)
    except RequestError as error:
        running.finish_reason, running.error = "error", error
        target.cancel(request.request_id)
