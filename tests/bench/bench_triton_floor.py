"""What Triton itself takes for a loop over two models: the least that any draft-target loop on it can add.

    python tests/bench/bench_triton_floor.py
    python tests/bench/bench_triton_floor.py --draft-mib 0 --target-mib 0        # with warm caches

Three models of a few lines: a loop that asks one model and then the other, each of which reads some memory once, as an
engine reads its weights, and sends its input back. No engine, no text, no bookkeeping. The same reading is done in this
process, in turns; what a step through the server takes beyond it is the floor. One request carries all steps, and each
step sends one response to the client, as an answer does. Medians over the requests; of CPU time, which hardly depends
on what else the machine does, the mean.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from trtkit.repository.pbtxt import ModelConfig, to_pbtxt
from trtkit.server.launch import ServerOptions
from trtkit.server.model_loading import GRPC_ADDRESS
from trtkit.server.processes import stubs_of
from trtkit.server.triton_server import TritonServer
from trtkit.serving.kserve import Connection, request_message
from trtkit.serving.tensor import ModelContract, required

Timing = tuple[float, float]
DRAFT, TARGET, LOOP = "echo_draft", "echo_target", "echo_loop"
_ECHO = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.weights = np.ones(int(config["parameters"]["mib"]["string_value"]) << 17, np.int64)
    def execute(self, requests):
        for request in requests:
            ids = pb_utils.get_input_tensor_by_name(request, "ids").as_numpy()
            self.weights.sum()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("echo", ids)])
            request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_LOOP = """
import json, threading
import numpy as np
import triton_python_backend_utils as pb_utils
from trtkit.serving.kserve import Connection, request_message
from trtkit.serving.tensor import ModelContract, required

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.stream = Connection(config["parameters"]["grpc_address"]["string_value"]).open_stream()
        names = ("echo_draft", "echo_target")
        io = (tuple(required("INT32", "ids", -1)), tuple(required("INT32", "echo", -1)))
        self.contracts = [ModelContract(name, *io) for name in names]
    def execute(self, requests):
        for request in requests:
            ids = pb_utils.get_input_tensor_by_name(request, "ids").as_numpy()[0].copy()
            threading.Thread(target=self.answer, args=(request.get_response_sender(), ids)).start()
    def answer(self, sender, ids):
        for _ in range(int(ids[0])):
            for contract in self.contracts:
                for outputs in self.stream.ask(request_message(contract, {"ids": ids})):
                    ids = outputs["echo"][0]
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("echo", ids[None])]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    def finalize(self):
        self.stream.close()
"""


def contract(name: str) -> ModelContract:
    return ModelContract(name, tuple(required("INT32", "ids", -1)), tuple(required("INT32", "echo", -1)))


def write_models(folder: Path, mib: dict[str, int]) -> None:
    parameters = {name: {"mib": str(size)} for name, size in mib.items()} | {LOOP: {GRPC_ADDRESS: "127.0.0.1:8001"}}
    for name, code in ((DRAFT, _ECHO), (TARGET, _ECHO), (LOOP, _LOOP)):
        model = folder / "model_repository" / name
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").write_text(code)
        config = ModelConfig(contract(name), max_batch_size=1, decoupled=True, parameters=parameters[name])
        (model / "config.pbtxt").write_text(to_pbtxt(config))


def cpu_of(server: TritonServer) -> Callable[[], float]:
    """CPU milliseconds so far of this process, the server and its models."""
    processes = [psutil.Process(pid) for pid in (server.pid, *(stub.pid for stub in stubs_of(server.shm_prefix)))]

    def total() -> float:
        times = (process.cpu_times() for process in processes)
        return (time.process_time() + sum(each.user + each.system for each in times)) * 1e3

    return total


def measure(given: argparse.Namespace, server: TritonServer) -> tuple[list[Timing], list[Timing]]:
    """Milliseconds of a step, by the clock and of CPU, of each request: the reading alone, and served."""
    weights = [np.ones(size << 17, np.int64) for size in (given.draft_mib, given.target_mib)]
    ids = np.arange(given.steps, given.steps + 64, dtype=np.int32)
    cpu_ms = cpu_of(server)
    connection = Connection(server.endpoints.grpc)

    def read() -> None:
        for _ in range(given.steps):
            for each in weights:
                each.sum()

    def serve() -> None:
        responses = sum(1 for _ in connection.stream(request_message(contract(LOOP), {"ids": ids})))
        assert responses == given.steps, "a step was lost"

    def timed(work: Callable[[], None]) -> Timing:
        before, start = cpu_ms(), time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1e3 / given.steps, (cpu_ms() - before) / given.steps

    pairs = [(timed(read), timed(serve)) for _ in range(given.runs + 1)][1:]
    connection.close()
    return [direct for direct, _ in pairs], [served for _, served in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft-mib", type=int, default=160, help="read for each draft; two passes of the demo draft")
    parser.add_argument("--target-mib", type=int, default=256, help="read for each verification")
    parser.add_argument("--steps", type=int, default=32, help="of one request")
    parser.add_argument("--runs", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder), {DRAFT: given.draft_mib, TARGET: given.target_mib})
        with TritonServer(Path(folder), options=ServerOptions(num_threads=1)) as server:
            sides = measure(given, server)
    direct, served = (statistics.median(wall for wall, _ in side) for side in sides)
    cpu_direct, cpu_served = (statistics.fmean(cpu for _, cpu in side) for side in sides)
    sys.stdout.write(
        f"a step      reading alone {direct:6.2f} ms   served {served:6.2f} ms   added {served - direct:5.2f} ms\n"
        f"CPU of it   reading alone {cpu_direct:6.2f} ms   served {cpu_served:6.2f} ms"
        f"   added {cpu_served - cpu_direct:5.2f} ms\n"
    )


if __name__ == "__main__":
    main()
