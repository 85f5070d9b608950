"""The Triton model `tensorrt_llm_bls`: one answer per request, each in a thread. The loop itself is in draft_target."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trtkit.draft_length import AdaptiveDraftLength, DraftLength, Experience, FixedDraftLength
from trtkit.errors import TrtkitError
from trtkit.serving.answer import pieces_of
from trtkit.serving.answer_outputs import counts_of, final_outputs, piece_outputs
from trtkit.serving.answer_times import AnswerTimes
from trtkit.serving.arguments import read_arguments
from trtkit.serving.batch import Reply, refuse_batch, replies_of
from trtkit.serving.build_defaults import read_defaults
from trtkit.serving.cancellation import PolledCancellation
from trtkit.serving.client_request import (
    ClientRequest,
    read_client_request,
    refuse_surely_too_long,
    refuse_too_long,
)
from trtkit.serving.contract import bls_contract, llm_contract
from trtkit.serving.conversation import Conversation, Conversations
from trtkit.serving.deadline import Deadline
from trtkit.serving.draft_schedule import ScheduledDraftLength, WatchedSchedule
from trtkit.serving.draft_target import DraftTargetRun, Generation
from trtkit.serving.inner_llm import InnerLlm
from trtkit.serving.kserve import Connection
from trtkit.serving.metrics import BLS_COUNTERS
from trtkit.serving.prompts import Prompts
from trtkit.serving.tensor import Array
from trtkit.serving.text import TextTokenizer
from trtkit.serving.triton_io import Counters, Sender, read_inputs
from trtkit.serving.word_lists import embedding_bias, word_tokens
from trtkit.serving.words import StopWords, pack_words


@dataclass(frozen=True)
class _Errand:
    """One answer to give: what is wanted, the way back, and how long it may take and took."""

    request: ClientRequest
    reply: Reply
    deadline: Deadline
    times: AnswerTimes


class DraftTarget:
    """TritonPythonModel of `tensorrt_llm_bls`.

    Requests run side by side in threads: they wait for the models nearly all the time.
    """

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read parameters and tokenizer."""
        arguments = read_arguments(args)
        self._defaults = read_defaults(arguments)
        self._decoupled = arguments.decoupled
        self._release = arguments.parameter("tensorrt_llm_version")
        self._contract = bls_contract(self._release)
        self._target_name = arguments.parameter("tensorrt_llm_model_name")
        self._draft_name = arguments.parameter("tensorrt_llm_draft_model_name", "")
        self._llm_contract = llm_contract(self._target_name, self._release)
        self._connection = Connection(arguments.parameter("grpc_address"))
        self._conversations = Conversations(self._connection)
        folder = arguments.path("tokenizer_dir")
        self._tokenizer = TextTokenizer.load(folder)
        adds_special = arguments.flag("add_special_tokens", default=True)
        self._prompts = Prompts(folder, self._tokenizer, add_special_tokens=adds_special)
        self._skip_special_tokens = arguments.flag("skip_special_tokens", default=True)
        self._cancellation_period_s = arguments.number("cancellation_check_period_ms", 100) / 1000
        self._counters = Counters(BLS_COUNTERS, arguments.name)
        self._experience = Experience()
        self._schedule = WatchedSchedule(arguments.build)
        self._under_way: set[str] = set()
        self._threads = ThreadPoolExecutor(arguments.number("max_concurrency", 64), thread_name_prefix="answer")

    def execute(self, requests: Sequence[Any]) -> None:
        """Read each request while its tensors are there, then answer it in a thread of its own."""
        for request in requests:
            sender = Sender(request, self._contract)
            try:
                rows = self._read(request)
            except TrtkitError as error:
                sender.fail(error)
                continue
            places = [(row, index) for row, requests in enumerate(rows) for index in range(len(requests))]
            answers = [each for requests in rows for each in requests]
            for each, reply in zip(answers, replies_of(sender, places), strict=True):
                errand = _Errand(each, reply, Deadline(each.timeout_s), AnswerTimes(time.time_ns()))
                waiting = self._threads.submit(self._answer_or_fail, errand)
                errand.deadline.bound_waiting(waiting, reply.fail)

    def finalize(self) -> None:
        """Wait for the answers under way."""
        self._threads.shutdown()
        self._conversations.close()
        self._connection.close()
        self._counters.close()

    def _read(self, request: Any) -> list[tuple[ClientRequest, ...]]:
        """The sequences wanted of each row."""
        inputs = read_inputs(request, self._contract)
        seed_name = "seed" if self._llm_contract.declares("seed") else "random_seed"
        rows = [
            read_client_request(inputs, row, self._llm_contract, self._defaults, decoupled=self._decoupled).sequences(
                seed_name
            )
            for row in range(inputs.num_rows)
        ]
        refuse_batch(sum(len(requests) for requests in rows), decoupled=self._decoupled)
        return rows

    def _answer_or_fail(self, errand: _Errand) -> None:
        request, reply = errand.request, errand.reply
        self._under_way.add(request.request_id)
        try:
            self._answer(errand)
        except TrtkitError as error:
            reply.fail(error)
        except BaseException as error:
            # A thread's exception would be lost, and the client would wait for ever.
            reply.fail(TrtkitError(f"internal error: {type(error).__name__}: {error}", "see the server's log"))
            raise
        finally:
            self._under_way.discard(request.request_id)

    def _answer(self, errand: _Errand) -> None:
        request, deadline = errand.request, errand.deadline
        errand.times.note_scheduled(time.time_ns())
        deadline.check()
        text = self._prompts.text(request.text, is_chat=request.is_chat)
        refuse_surely_too_long(text, self._tokenizer.longest_token_bytes, self._defaults)
        prompt_ids = self._prompts.encode(text, is_chat=request.is_chat)
        refuse_too_long(len(prompt_ids), request.max_tokens, self._defaults)
        with self._conversations.borrow() as conversation, deadline.enforced(conversation.cancel):
            target = self._llm(self._target_name, request, conversation)
            draft = self._llm(self._draft_name, request, conversation) if request.max_draft_len > 0 else None
            draft_length = self._draft_length(request)
            scheduled = self._scheduled(draft_length, request)
            run = DraftTargetRun(self._generation(request, tuple(prompt_ids)), target, draft, scheduled)
            self._tell(run, errand, target)
        self._counters.add(counts_of(run, len(prompt_ids)))
        if isinstance(draft_length, AdaptiveDraftLength):
            self._experience = draft_length.experience

    def _tell(self, run: DraftTargetRun, errand: _Errand, target: InnerLlm) -> None:
        """Send a run's pieces as they come, or at its end everything at once. Raises RequestError REQ-DEADLINE."""
        request, reply = errand.request, errand.reply
        prompt_ids = run.generation.prompt_ids
        stream = self._tokenizer.stream(skip_special_tokens=self._skip_special_tokens)
        cancellation = PolledCancellation(reply.is_cancelled, self._cancellation_period_s)
        texts = [stream.push(prompt_ids)] if request.includes_prompt else []
        num_sent = 0
        for piece in pieces_of(run, stream, StopWords(request.stop_words), cancellation.is_cancelled):
            if piece.token_ids:
                errand.times.note_tokens(time.time_ns())
            if request.streaming and piece.token_ids:
                scores = run.scores.outputs(num_sent, request.returns)
                reply.send(piece_outputs(piece.text, piece.token_ids) | scores, final=False)
                num_sent += len(piece.token_ids)
            else:
                texts.append(piece.text)
        errand.deadline.check()
        token_ids = () if request.streaming else tuple(run.token_ids)
        figures = final_outputs(run, len(prompt_ids)) | target.cache_figures
        figures |= run.scores.outputs(num_sent, request.returns)
        figures |= errand.times.outputs() if request.wants_measures else {}
        reply.send(piece_outputs("".join(texts), token_ids) | figures, final=True)

    def _generation(self, request: ClientRequest, prompt_ids: tuple[int, ...]) -> Generation:
        return Generation(
            request_id=request.request_id,
            prompt_ids=prompt_ids,
            max_new_tokens=request.max_tokens,
            end_ids=request.end_ids,
            min_new_tokens=request.min_tokens,
            sampling={**request.sampling, **self._word_inputs(request)},
            rolling=self._defaults.rolling,
            by_logits=request.by_logits,
            returns=request.returns,
        )

    def _word_inputs(self, request: ClientRequest) -> dict[str, Array]:
        """Bad words and biased words as the engines take them."""
        bad = word_tokens(self._tokenizer, request.bad_words)
        vocab_size = self._defaults.vocab_size
        bias = embedding_bias(self._tokenizer, request.bias_words, request.bias_weights, vocab_size)
        inputs = {"bad_words_list": pack_words(bad) if bad else None, "embedding_bias": bias}
        return {name: array for name, array in inputs.items() if array is not None}

    def _draft_length(self, request: ClientRequest) -> DraftLength:
        if self._defaults.adaptive and not request.fixes_draft_len:
            return AdaptiveDraftLength(request.max_draft_len, self._experience)
        return FixedDraftLength(request.max_draft_len)

    def _scheduled(self, draft_length: DraftLength, request: ClientRequest) -> DraftLength:
        """Held to what was tuned for the load, unless the client chose the length itself."""
        schedule = None if request.fixes_draft_len else self._schedule.current()
        if schedule is None:
            return draft_length
        return ScheduledDraftLength(draft_length, schedule, lambda: len(self._under_way))

    def _llm(self, name: str, request: ClientRequest, conversation: Conversation) -> InnerLlm:
        return InnerLlm(
            conversation,
            llm_contract(name, self._release),
            decoupled=self._decoupled,
            end_id=request.end_ids[0],
            pad_id=request.pad_id,
        )
