"""The Triton model of the stand-in backend `tensorrtllm`. Knows Triton's life cycle and the parameters it honours."""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trtkit.engines.inspect import EngineInfo, read_engine
from trtkit.errors import InputError, RequestError, TrtkitError
from trtkit.reference.beam_engine import BeamEngine
from trtkit.reference.engine import Engine
from trtkit.serving.arguments import ModelArguments, read_arguments
from trtkit.serving.batch import refuse_batch, replies_of
from trtkit.serving.contract import llm_contract
from trtkit.serving.inputs import Inputs
from trtkit.serving.metrics import LLM_COUNTERS
from trtkit.serving.triton_io import Counters, Sender, read_inputs
from trtkit.standin.cache import cache_options
from trtkit.standin.exchange import Exchange
from trtkit.standin.loop import EngineLoop
from trtkit.standin.parameters import check_parameters
from trtkit.standin.requests import LlmRequest, ModelLimits, read_request


class StandIn:
    """TritonPythonModel that answers a `tensorrt_llm` repository from the reference engine.

    One process per model, weights loaded once; all requests under way advance together, step by step.
    """

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the engine that gpt_model_path points at and start its loop."""
        arguments = read_arguments(args)
        check_parameters(arguments)
        info = read_engine(arguments.path("gpt_model_path"))
        self._contract = llm_contract(arguments.name, info.version)
        self._max_draft_len = info.spec.max_draft_len
        self._decoupled = arguments.decoupled
        self._numbers = itertools.count(1)
        self._counters = Counters(LLM_COUNTERS, arguments.name)
        engine = _load(info, arguments)
        self._limits = ModelLimits(
            vocab_size=engine.vocab_size,
            excludes_prompt=arguments.flag("exclude_input_in_output", default=False),
            max_beam_width=arguments.number("max_beam_width", 1),
        )
        self._loop = EngineLoop(
            BeamEngine(engine),
            cancellation_period_s=arguments.number("cancellation_check_period_ms", 100) / 1000,
            on_finished=self._count,
        )

    def execute(self, requests: Sequence[Any]) -> None:
        """Hand the requests to the loop; their responses are sent from there.

        Triton's stub keeps Python's lock until it has told the server that this method is over. Sleeping for no time
        passes the lock to the loop's thread, whose arithmetic then runs meanwhile.
        """
        for request in requests:
            sender = Sender(request, self._contract)
            try:
                self._begin(read_inputs(request, self._contract), sender)
            except TrtkitError as error:
                sender.fail(error)
        time.sleep(0)

    def finalize(self) -> None:
        """Stop the loop."""
        self._loop.close()
        self._counters.close()

    def _count(self, exchange: Exchange) -> None:
        self._counters.add(
            {
                "trtkit_engine_requests": 1,
                "trtkit_engine_prompt_tokens": len(exchange.request.generation.prompt_ids),
                "trtkit_engine_reused_tokens": exchange.num_reused_tokens,
            }
        )

    def _begin(self, inputs: Inputs, sender: Sender) -> None:
        if inputs.value("stop", 0):
            if not inputs.request_id:
                raise RequestError(
                    "input stop is true, and the request has no id",
                    "send the id of the request to stop",
                    code="REQ-INPUT",
                )
            self._loop.cancel(inputs.request_id, sender.finish_empty)
            return
        rows = [self._read(inputs, row) for row in range(inputs.num_rows)]
        answers = [
            (row, index, replace(request, generation=generation))
            for row, request in enumerate(rows)
            for index, generation in enumerate(request.generation.sequences(request.num_sequences))
        ]
        refuse_batch(len(answers), decoupled=self._decoupled)
        places = [(row, index) for row, index, _ in answers]
        for (_, _, request), reply in zip(answers, replies_of(sender, places), strict=True):
            self._loop.submit(inputs.request_id, Exchange(request, reply))

    def _read(self, inputs: Inputs, row: int) -> LlmRequest:
        request = read_request(inputs, row, f"{next(self._numbers)}", self._limits)
        self._refuse_shape(len(request.generation.draft_ids), streaming=request.streaming)
        return request

    def _refuse_shape(self, num_draft_tokens: int, *, streaming: bool) -> None:
        if num_draft_tokens > self._max_draft_len:
            raise InputError(
                f"input draft_input_ids holds {num_draft_tokens} tokens, the engine takes {self._max_draft_len}",
                "send fewer, or build with a larger speculation.max_draft_len",
                code="SPEC-K",
            )
        if streaming and not self._decoupled:
            raise InputError(
                "input streaming is true, but the model is not decoupled",
                "build with serving.streaming: true, or leave it out",
                code="REQ-STREAMING",
            )


def _load(info: EngineInfo, arguments: ModelArguments) -> Engine:
    if info.checkpoint is None:
        raise InputError(
            f"{info.folder} is a TensorRT-LLM engine, which needs a GPU",
            "build with backend: reference for this machine",
            code="ENGINE-GPU",
            where=str(info.folder),
        )
    return Engine.load(
        info.checkpoint,
        max_batch_size=info.spec.max_batch_size,
        max_seq_len=info.spec.max_seq_len,
        cache=cache_options(info, arguments),
    )
