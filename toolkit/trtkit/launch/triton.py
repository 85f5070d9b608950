"""The tritonserver command of one process: repository, ports, memory pools. Knows Triton's options, no MPI."""

from collections.abc import Sequence
from dataclasses import dataclass

TRITONSERVER = "tritonserver"


@dataclass(frozen=True)
class TritonServer:
    """What every process of a server is given. repository is relative to the build directory, the working directory."""

    repository: str = "model_repository"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002


def plain_command(server: TritonServer) -> list[str]:
    """One tritonserver with nothing about ranks: for the LLM API, whose model starts its own workers.

    Auto-completion stays on: the llmapi model states its transaction policy in it.
    """
    return [TRITONSERVER, *_common(server)]


def rank_command(server: TritonServer, rank: int, models: Sequence[str]) -> list[str]:
    """The process of one MPI rank. Rank 0 loads the whole repository, the others only `models`, the TensorRT-LLM ones.

    Every rank names its shared memory after itself, because they run on one host.
    """
    only = ["--model-control-mode=explicit", *(f"--load-model={model}" for model in models)] if rank else []
    return [
        TRITONSERVER,
        *_common(server),
        *only,
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name=prefix{rank}_",
    ]


def orchestrator_command(server: TritonServer, num_gpus: int) -> list[str]:
    """The process that spawns the workers of several models: it keeps no memory of its own on any GPU."""
    pools = [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(num_gpus)]
    return [*rank_command(server, 0, ()), "--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools]


def _common(server: TritonServer) -> list[str]:
    return [
        f"--model-repository={server.repository}",
        f"--http-port={server.http_port}",
        f"--grpc-port={server.grpc_port}",
        f"--metrics-port={server.metrics_port}",
    ]
