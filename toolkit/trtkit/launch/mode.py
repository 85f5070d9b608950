"""Plain, leader, orchestrator or prespawned: how a deployment must be started, and with which command. Runs nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trtkit.errors import InputError
from trtkit.launch.triton import TritonServer, orchestrator_command, plain_command, rank_command

ModeName = Literal["plain", "leader", "orchestrator", "prespawned"]
_MPIRUN = ("mpirun", "--allow-run-as-root")
_TARGET, _DRAFT = "tensorrt_llm", "tensorrt_llm_draft"


@dataclass(frozen=True)
class Ranks:
    """Tensor times pipeline ranks of each model; draft 0 is no draft."""

    target: int
    draft: int = 0


@dataclass(frozen=True)
class Launch:
    """How a server is started: the mode with its reason, the environment it adds, and the argument list."""

    mode: ModeName
    reason: str
    environment: Mapping[str, str]
    command: tuple[str, ...]


def launch_llmapi(server: TritonServer, environment: Mapping[str, str] | None = None) -> Launch:
    """The LLM API starts its own workers; `environment` is what the release wants besides."""
    reason = "the llmapi model starts a worker for every rank itself"
    return Launch("plain", reason, environment or {}, tuple(plain_command(server)))


def launch_engines(ranks: Ranks, server: TritonServer, num_gpus: int, *, fast_logits: bool = False) -> Launch:
    """How a server with TensorRT-LLM engines is started.

    One model: leader mode, one process per rank, the same model in all. Two models: orchestrator mode, the only one in
    which draft and target may have different tensor parallelism (TensorRT-LLM PR #3797). fast_logits hands draft
    logits over by MPI and needs all processes spawned beforehand. Raises InputError when the GPUs do not suffice.
    """
    _refuse_missing_gpus(ranks, num_gpus)
    if not ranks.draft:
        return _leader(ranks, server)
    return _prespawned(ranks, server) if fast_logits else _orchestrator(ranks, server, num_gpus)


def _leader(ranks: Ranks, server: TritonServer) -> Launch:
    processes = [["-n", "1", *rank_command(server, rank, [_TARGET])] for rank in range(ranks.target)]
    reason = f"one model on {ranks.target} rank{'s' if ranks.target > 1 else ''}: every rank is a tritonserver"
    return Launch("leader", reason, {}, _mpirun(processes))


def _orchestrator(ranks: Ranks, server: TritonServer, num_gpus: int) -> Launch:
    reason = (
        f"two models with {ranks.target} and {ranks.draft} ranks: one tritonserver spawns a worker for each; it costs "
        "a hop between processes per step, and runs on one node"
    )
    environment = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    return Launch("orchestrator", reason, environment, _mpirun([["-n", "1", *orchestrator_command(server, num_gpus)]]))


def _prespawned(ranks: Ranks, server: TritonServer) -> Launch:
    total = 1 + ranks.draft + ranks.target
    processes = [["-n", "1", *rank_command(server, rank, [_TARGET, _DRAFT])] for rank in range(total)]
    reason = f"draft logits go over MPI: {total} processes, the first orchestrates"
    environment = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "0"}
    return Launch("prespawned", reason, environment, _mpirun(processes))


def _mpirun(processes: list[list[str]]) -> tuple[str, ...]:
    """mpirun with one application context per process, separated by colons."""
    command = list(_MPIRUN)
    for number, process in enumerate(processes):
        command += [":"] if number else []
        command += process
    return tuple(command)


def _refuse_missing_gpus(ranks: Ranks, num_gpus: int) -> None:
    needed = max(ranks.target, ranks.draft)
    if needed > num_gpus:
        raise InputError(
            f"{needed} ranks need as many GPUs; gpu.count is {num_gpus}",
            "raise gpu.count, or lower tensor_parallel and pipeline_parallel",
            code="GPU-COUNT",
            where="gpu.count",
        )
