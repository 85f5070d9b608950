"""Engine: requests in, tokens out, one step at a time. Knows the order of work; the arithmetic is in model/."""

import sys
from pathlib import Path

import torch

from trtkit.errors import RequestError
from trtkit.reference.assembly import Sizes, assemble
from trtkit.reference.batch import make_batch
from trtkit.reference.intake import Limits, check_draft, check_request
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.kv_cache.storage import KvStorage
from trtkit.reference.model.config import ModelConfig, read_config
from trtkit.reference.model.decoder import Decoder
from trtkit.reference.model.load import WeightLoader
from trtkit.reference.request import BlockUse, FloatArray, GenerationRequest, StepOutput
from trtkit.reference.scheduler.scheduler import Scheduler, Segment
from trtkit.reference.verify import Choices, not_finite

MAX_NUM_TOKENS = 512
DEFAULT_CACHE = CacheOptions()


class Engine:
    """A decoder, its cache and its scheduler. Not safe for threads: one thread calls all methods."""

    def __init__(self, decoder: Decoder, storage: KvStorage, scheduler: Scheduler, limits: Limits) -> None:
        self._decoder = decoder
        self._storage = storage
        self._scheduler = scheduler
        self._limits = limits
        self._cancelled: list[StepOutput] = []

    @classmethod
    def load(
        cls,
        checkpoint: Path,
        *,
        max_batch_size: int,
        max_seq_len: int,
        num_threads: int | None = None,
        cache: CacheOptions = DEFAULT_CACHE,
        max_num_tokens: int = MAX_NUM_TOKENS,
    ) -> "Engine":
        """Read a TensorRT-LLM checkpoint directory and make room for max_batch_size sequences of max_seq_len tokens.

        num_threads sets PyTorch's number of threads for the whole process; None leaves it alone. max_num_tokens bounds
        the rows of one pass: prompts share what running sequences leave of it.
        Raises CheckpointError when the directory is not a checkpoint that this engine computes, and InputError when
        sizes or options of the cache are impossible.
        """
        (sizes := Sizes(max_batch_size, max_seq_len, max(max_num_tokens, 2 * max_batch_size))).check()
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        config = read_config(checkpoint)
        weights = WeightLoader(checkpoint, config, torch.device("cpu")).load(max_seq_len)
        decoder, storage, tables = assemble(config, weights, cache, sizes)
        scheduler = Scheduler(tables, max_sequences=max_batch_size, max_num_tokens=sizes.max_num_tokens)
        # Under a window a text of any length fits; the answer's own limit is what ends it.
        longest = max_seq_len if cache.window_tokens is None else sys.maxsize
        return cls(decoder, storage, scheduler, Limits(config.vocab_size, longest))

    @property
    def config(self) -> ModelConfig:
        """Shapes and constants of the model."""
        return self._decoder.config

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._limits.vocab_size

    @property
    def dtype(self) -> str:
        """The dtype of weights, activations and cache: float32, float16 or bfloat16."""
        return self._decoder.config.dtype

    @property
    def max_seq_len(self) -> int:
        """Most tokens of a prompt and its answer together."""
        return self._limits.max_seq_len

    @property
    def cache_bytes(self) -> int:
        """Memory of keys and values, allocated at load."""
        return self._storage.num_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache."""
        return self._scheduler.tables.pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no running request holds."""
        return self._scheduler.tables.pool.num_free

    @property
    def has_work(self) -> bool:
        """A call of step would do or report something."""
        return bool(self._cancelled) or self._scheduler.has_work

    def validate(self, request: GenerationRequest) -> None:
        """Raise RequestError when the request can never be answered, or its id is in flight."""
        check_request(request, self._limits)
        tables, num_tokens = self._scheduler.tables, len(request.prompt_ids) + request.max_new_tokens
        if tables.max_blocks(num_tokens) > tables.pool.num_blocks:
            raise RequestError(
                f"{num_tokens} tokens of prompt and answer need {tables.max_blocks(num_tokens)} blocks of the KV cache,"
                f" which has {tables.pool.num_blocks}",
                "shorten the prompt, ask for fewer tokens, or give the cache more blocks",
                code="REQ-CACHE",
            )
        if self._scheduler.knows(request.request_id):
            raise RequestError(
                f"request id {request.request_id!r} is already in flight", "use another id", code="REQ-DUPLICATE"
            )

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; its outputs come from the following steps.

        Raises RequestError when it can never be answered; other requests are unaffected.
        """
        self.validate(request)
        self._scheduler.enqueue(request)

    def attach_draft(self, request_id: str, draft_ids: tuple[int, ...], draft_logits: FloatArray | None = None) -> None:
        """Let a request that is past its prompt verify drafts in the next step, as GenerationRequest.draft_ids.

        Raises RequestError when there is no such request, or when the draft is not of this model's vocabulary.
        """
        check_draft(draft_ids, draft_logits, self._limits)
        sequence = self._scheduler.running(request_id)
        if sequence is None or sequence.is_prefilling:
            raise RequestError(
                f"request {request_id!r} is not decoding", "attach drafts once it has its first token", code="REQ-DRAFT"
            )
        sequence.take_draft(draft_ids, draft_logits)

    def cancel(self, request_id: str) -> bool:
        """End a request now and free its blocks; the next step reports it with the reason "cancelled".

        False when no such request is in flight.
        """
        if not self._scheduler.knows(request_id):
            return False
        sequence = self._scheduler.cancel(request_id)
        num_prompt_tokens = len(sequence.request.prompt_ids)
        self._cancelled.append(StepOutput(request_id, (), True, "cancelled", num_prompt_tokens, sequence.num_reused))
        return True

    def drop_all(self) -> None:
        """Cancel every request without a report."""
        self._scheduler.cancel_all()
        self._cancelled.clear()

    def step(self) -> list[StepOutput]:
        """One pass: every running sequence advances, waiting ones start while blocks are free.

        A sequence whose prompt needs several passes has no output until its last one.
        """
        outputs, self._cancelled = self._cancelled, []
        plan = self._scheduler.plan()
        self._storage.apply(plan.row_work)
        if not plan.segments:
            return outputs
        computed = self._decoder.run(make_batch(plan.segments, self._scheduler.tables.block_size))
        choices, row, logits_row = Choices(computed.logits), 0, 0
        for segment in plan.segments:
            sequence, rows = segment.sequence, range(logits_row, logits_row + segment.num_logits)
            is_finite = computed.is_finite[row : row + segment.num_known]
            row, logits_row = row + len(segment.token_ids), rows.stop
            if segment.num_known < len(segment.token_ids) and not all(is_finite):
                self._forget_draft(segment)
                continue
            if sequence.wants_context:
                num_prompt_rows = len(sequence.request.prompt_ids) - segment.start
                sequence.context_logits.append(choices.logits(rows[:num_prompt_rows]))
            if segment.num_choosing or not all(is_finite):
                outputs.append(self._settle(segment, choices, rows[len(rows) - segment.num_choosing :], is_finite))
            else:
                sequence.num_computed = segment.end
                self._scheduler.advance(sequence)
        return outputs

    def generate(self, request: GenerationRequest) -> list[StepOutput]:
        """Answer one request to its end, on an engine that has nothing else to do.

        Raises the request's own error when it ends with one, and RequestError REQ-BUSY when others are in flight,
        whose outputs would be lost.
        """
        if self.has_work:
            raise RequestError("the engine is answering other requests", "use submit and step", code="REQ-BUSY")
        self.submit(request)
        outputs: list[StepOutput] = []
        try:
            while self.has_work:
                outputs.extend(self.step())
        except BaseException:
            self.drop_all()
            raise
        if outputs[-1].error is not None:
            raise outputs[-1].error
        return outputs

    def check(self) -> None:
        """Raise AssertionError when the bookkeeping contradicts itself."""
        self._scheduler.check()

    def _forget_draft(self, segment: Segment) -> None:
        """Compute a segment again without its draft: masked keys that are not finite spoil the rows before them."""
        segment.sequence.cut_draft(0)
        self._storage.apply(self._scheduler.tables.clear(segment.sequence.blocks, segment.start, segment.end))

    def _settle(self, segment: Segment, choices: Choices, rows: range, is_finite: list[bool]) -> StepOutput:
        """Choose a sequence's next tokens, rewind the rest of its drafts, and let it go when it is done."""
        sequence, request = segment.sequence, segment.sequence.request
        token_ids: tuple[int, ...] = ()
        acceptance, error, chosen, table = None, None, None, sequence.blocks
        try:
            if not all(is_finite):
                raise not_finite(segment.start + segment.num_known - 1)
            chosen = choices.extend(sequence, rows)
            token_ids = tuple(sequence.token_ids[-chosen.num_tokens :])
            acceptance = sequence.settle(chosen.num_tokens)
            reason = sequence.finish_reason()
            self._scheduler.advance(sequence)
            if not choices.are_finite(rows):
                # What the pass left behind the kept tokens would be read again, masked, and a masked NaN is still one.
                self._storage.apply(self._scheduler.tables.clear(sequence.blocks, sequence.num_computed, segment.end))
            if reason is not None:
                self._scheduler.finish(sequence)
        except RequestError as problem:
            error, reason = problem, "error"
            self._scheduler.fail(sequence)
        return StepOutput(
            request_id=request.request_id,
            token_ids=token_ids,
            finished=reason is not None,
            finish_reason=reason,
            num_prompt_tokens=len(request.prompt_ids),
            num_reused_tokens=sequence.num_reused,
            acceptance=acceptance,
            error=error,
            log_probs=chosen.log_probs if chosen else (),
            generation_logits=chosen.generation_logits if chosen else None,
            context_logits=sequence.take_context_logits(),
            blocks=BlockUse(table.num_allocated, table.num_shared),
        )
