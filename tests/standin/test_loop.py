"""The engine's thread with the real engine on a tiny checkpoint: answers side by side, cancelled and refused ones."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import tiny_checkpoint
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import TrtkitError
from trtkit.reference.engine import Engine
from trtkit.reference.request import GenerationRequest, StepOutput
from trtkit.serving.tensor import Outputs
from trtkit.standin.exchange import Exchange
from trtkit.standin.loop import EngineLoop
from trtkit.standin.requests import LlmRequest

WAIT_S = 20


class Caller:
    """Collects an answer from another thread."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.error: TrtkitError | None = None
        self.gave_up = False
        self.first = threading.Event()
        self.done = threading.Event()

    def send(self, outputs: Outputs, *, final: bool) -> None:
        self.tokens += outputs["output_ids"].reshape(-1).tolist()
        self.first.set()
        if final:
            self.done.set()

    def fail(self, error: TrtkitError, *, final: bool = True) -> None:
        self.error = error
        self.done.set()

    def is_cancelled(self) -> bool:
        return self.gave_up


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    convert_to(tiny_checkpoint(folder / "hf"), folder / "trt", ConversionOptions(dtype="float32"))
    return folder / "trt"


@pytest.fixture
def loop(checkpoint: Path) -> Iterator[EngineLoop]:
    engine = Engine.load(checkpoint, max_batch_size=3, max_seq_len=200, num_threads=1)
    loop = EngineLoop(engine, cancellation_period_s=0.01)
    yield loop
    loop.close()


def start(loop: EngineLoop, number: int, tokens: int) -> Caller:
    caller = Caller()
    generation = GenerationRequest(f"e{number}", (3, 4, 5 + number), tokens)
    request = LlmRequest(generation, streaming=True, includes_prompt=False, wants_measures=False)
    loop.submit(f"client-{number}", Exchange(request, caller))
    return caller


def test_answers_side_by_side_are_the_answers_one_by_one(loop: EngineLoop, checkpoint: Path) -> None:
    callers = [start(loop, number, 20) for number in range(5)]
    assert all(caller.done.wait(WAIT_S) for caller in callers)
    engine = Engine.load(checkpoint, max_batch_size=1, max_seq_len=200, num_threads=1)
    for number, caller in enumerate(callers):
        steps = engine.generate(GenerationRequest("alone", (3, 4, 5 + number), 20))
        assert caller.tokens == [token for output in steps for token in output.token_ids]


def test_a_stop_by_the_clients_id_ends_its_answer_and_leaves_the_others(loop: EngineLoop) -> None:
    stopped, other = start(loop, 1, 190), start(loop, 2, 40)
    assert stopped.first.wait(WAIT_S)
    confirmed = threading.Event()
    loop.cancel("client-1", confirmed.set)
    assert confirmed.wait(WAIT_S)
    assert stopped.done.wait(WAIT_S)
    assert other.done.wait(WAIT_S)
    assert len(stopped.tokens) < 190
    assert len(other.tokens) == 40


def test_a_stop_for_an_unknown_id_is_confirmed(loop: EngineLoop) -> None:
    confirmed = threading.Event()
    loop.cancel("nobody", confirmed.set)
    assert confirmed.wait(WAIT_S)


def test_an_answer_whose_caller_gave_up_is_dropped(loop: EngineLoop) -> None:
    caller = start(loop, 1, 190)
    assert caller.first.wait(WAIT_S)
    caller.gave_up = True
    assert caller.done.wait(WAIT_S)
    assert len(caller.tokens) < 190


def test_an_impossible_request_fails_alone(loop: EngineLoop) -> None:
    wrong, right = start(loop, 1, 9999), start(loop, 2, 5)
    assert wrong.done.wait(WAIT_S)
    assert right.done.wait(WAIT_S)
    assert wrong.error is not None
    assert wrong.error.code == "REQ-LENGTH"
    assert len(right.tokens) == 5


def test_unloading_ends_answers_under_way_with_an_error(checkpoint: Path) -> None:
    engine = Engine.load(checkpoint, max_batch_size=1, max_seq_len=200, num_threads=1)
    loop = EngineLoop(engine, cancellation_period_s=0.01)
    caller = start(loop, 1, 190)
    assert caller.first.wait(WAIT_S)
    loop.close()
    assert caller.done.is_set()
    assert len(caller.tokens) == 190 or "has ended" in str(caller.error)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_broken_engine_fails_answers_under_way_and_later_ones() -> None:
    class Broken:
        has_work = False

        def submit(self, request: GenerationRequest) -> None:
            self.has_work = True

        def cancel(self, request_id: str) -> bool:
            return False

        def step(self) -> list[StepOutput]:
            raise MemoryError("no room")

    loop = EngineLoop(Broken(), cancellation_period_s=1)
    for number in range(2):
        caller = start(loop, number, 5)
        assert caller.done.wait(WAIT_S)
        assert caller.error is not None
        assert caller.error.code == "ENGINE-GONE"
    loop.close()
