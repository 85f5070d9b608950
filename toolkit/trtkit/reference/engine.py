"""Engine: requests in, tokens out, one step at a time. Knows the order of work; the arithmetic is in model/."""

import math
from pathlib import Path

import torch

from trtkit.errors import RequestError
from trtkit.reference.batch import TILE, make_batch
from trtkit.reference.intake import Limits, check_draft, check_request
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.kv_cache.slots import SlotPool
from trtkit.reference.kv_cache.storage import KvStorage
from trtkit.reference.model.config import ModelConfig, read_config
from trtkit.reference.model.decoder import Decoder
from trtkit.reference.model.load import WeightLoader
from trtkit.reference.request import FloatArray, GenerationRequest, StepOutput
from trtkit.reference.scheduler.scheduler import Scheduler
from trtkit.reference.scheduler.sequence import Sequence
from trtkit.reference.verify import Choices

MAX_NUM_TOKENS = 512
DEFAULT_CACHE = CacheOptions()


class Engine:
    """A decoder, its cache and its scheduler. Not safe for threads: one thread calls all methods."""

    def __init__(self, decoder: Decoder, cache: KvStorage, scheduler: Scheduler, limits: Limits) -> None:
        self._decoder = decoder
        self._cache = cache
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
        Raises CheckpointError when the directory is not a checkpoint that this engine computes.
        """
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        config = read_config(checkpoint)
        capacity = math.ceil(max_seq_len / TILE) * TILE
        weights = WeightLoader(checkpoint, config, torch.device("cpu")).load(capacity)
        cache.check()
        storage = KvStorage(
            num_layers=config.num_layers,
            num_slots=max_batch_size,
            capacity=capacity,
            kv_shape=(config.num_kv_heads, config.head_dim),
            like=weights.embedding,
        )
        pool = SlotPool(max_batch_size, max_seq_len, reuse=cache.reuse != "off")
        scheduler = Scheduler(pool, max(max_num_tokens, 2 * max_batch_size))
        return cls(Decoder(config, weights, storage), storage, scheduler, Limits(config.vocab_size, max_seq_len))

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
    def has_work(self) -> bool:
        """A call of step would do or report something."""
        return bool(self._cancelled) or self._scheduler.has_work

    def validate(self, request: GenerationRequest) -> None:
        """Raise RequestError when the request can never be answered."""
        check_request(request, self._limits)

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; its outputs come from the following steps.

        Raises RequestError when it can never be answered; other requests are unaffected.
        """
        self.validate(request)
        if self._scheduler.knows(request.request_id):
            raise RequestError(
                f"request id {request.request_id!r} is already in flight", "use another id", code="REQ-DUPLICATE"
            )
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
        """End a request now and free its slot; the next step reports it with the reason "cancelled".

        False when no such request is in flight.
        """
        if not self._scheduler.knows(request_id):
            return False
        sequence = self._scheduler.remove(request_id)
        prompt, reused = (len(sequence.request.prompt_ids), sequence.num_reused) if sequence else (0, 0)
        self._cancelled.append(StepOutput(request_id, (), True, "cancelled", prompt, reused))
        return True

    def step(self) -> list[StepOutput]:
        """One pass: every running sequence advances, waiting ones start while slots are free.

        A sequence whose prompt needs several passes has no output until its last one.
        """
        outputs, self._cancelled = self._cancelled, []
        plan = self._scheduler.plan()
        for placement in plan.copies:
            self._cache.copy_prefix(placement.copy_from or 0, placement.slot, placement.num_reused)
        if not plan.segments:
            return outputs
        batch = make_batch(plan.segments, self._cache.capacity)
        choices = Choices(self._decoder.logits(batch))
        row = 0
        for segment in plan.segments:
            if segment.num_choosing:
                outputs.append(self._settle(segment.sequence, choices, range(row, row + segment.num_choosing)))
            else:
                segment.sequence.num_computed += len(segment.token_ids)
                self._scheduler.advance(segment.sequence)
            row += segment.num_choosing
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
        while self.has_work:
            outputs.extend(self.step())
        if outputs[-1].error is not None:
            raise outputs[-1].error
        return outputs

    def check(self) -> None:
        """Raise AssertionError when the bookkeeping contradicts itself."""
        self._scheduler.check()

    def _settle(self, sequence: Sequence, choices: Choices, rows: range) -> StepOutput:
        """Choose a sequence's next tokens, rewind the rest of its drafts, and let it go when it is done."""
        request = sequence.request
        token_ids: tuple[int, ...] = ()
        acceptance, error, chosen = None, None, None
        try:
            chosen = choices.extend(sequence, rows)
            token_ids = tuple(sequence.token_ids[-chosen.num_tokens :])
            acceptance = sequence.settle(chosen.num_tokens)
            reason = sequence.finish_reason()
            self._scheduler.advance(sequence)
        except RequestError as problem:
            error, reason = problem, "error"
            sequence.num_computed = 0
            self._scheduler.advance(sequence)
        if not choices.are_finite(rows):
            # What is left of this pass would reach whoever reads the slot next, masked or not.
            self._cache.clear(sequence.slot, sequence.num_computed)
        if reason is not None:
            self._scheduler.remove(request.request_id)
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
        )
