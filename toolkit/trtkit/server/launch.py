"""The exact command, environment and load order of one server. Pure: starts nothing, writes nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trtkit.server.endpoints import Endpoints
from trtkit.server.installation import TritonInstallation
from trtkit.serving.contract import BLS, DRAFT, ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET

# How long Triton waits for requests once it is told to end: what is under way then has had its time.
EXIT_TIMEOUT_S = 1
_LOAD_ORDER = (PREPROCESSING, POSTPROCESSING, TARGET, DRAFT, ENSEMBLE, BLS)


@dataclass(frozen=True)
class ServerOptions:
    """Time-outs and sizes of one server.

    load_timeout_s is per model: a load that hangs would hang for ever. drain_s is how long requests under way may take
    after a stop was asked for; 0 ends the server at once. num_threads is for the arithmetic of each model's process;
    None leaves it to PyTorch. for_one_call: the server ends with what it was started for, so other processes must not
    use it.
    """

    live_timeout_s: float = 60.0
    load_timeout_s: float = 300.0
    drain_s: float = 0.0
    num_threads: int | None = None
    start_attempts: int = 4
    for_one_call: bool = False


@dataclass(frozen=True)
class ServerFolders:
    """Where one server's files lie, below a build directory."""

    build: Path

    @property
    def repository(self) -> Path:
        """What is served."""
        return self.build / "model_repository"

    @property
    def backends(self) -> Path:
        """The backend directory, filled at each start."""
        return self.build / "launch" / "backends"

    @property
    def log(self) -> Path:
        """What the server and its models print."""
        return self.build / "logs" / "tritonserver.log"

    @property
    def state(self) -> Path:
        """Who serves this build at the moment."""
        return self.build / "launch" / "server.json"


def server_command(
    installation: TritonInstallation,
    folders: ServerFolders,
    endpoints: Endpoints,
    shm_prefix: str,
) -> list[str]:
    """The command line of tritonserver: strict configs, and no model until one is asked for.

    Loading several Python models at once crashes the server now and then, hence the explicit mode.
    """
    return [
        str(installation.binary),
        f"--model-repository={folders.repository.resolve()}",
        f"--backend-directory={folders.backends.resolve()}",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        f"--http-address={endpoints.host}",
        f"--grpc-address={endpoints.host}",
        f"--metrics-address={endpoints.host}",
        f"--http-port={endpoints.http_port}",
        f"--grpc-port={endpoints.grpc_port}",
        f"--metrics-port={endpoints.metrics_port}",
        "--allow-gpu-metrics=false",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
    ]


def server_environment(installation: TritonInstallation, options: ServerOptions) -> dict[str, str]:
    """The whole environment of the server: the stub finds this interpreter's packages through PATH.

    The stub's Python is isolated: it ignores every PYTHON... variable. PASSIVE keeps the idle threads of one model's
    process from spinning on the cores that another one needs.
    """
    threads = {} if options.num_threads is None else {"OMP_NUM_THREADS": str(options.num_threads)}
    return {
        "LD_LIBRARY_PATH": ":".join(str(folder) for folder in installation.library_path),
        "PATH": f"{installation.python_bin}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        **threads,
    }


def load_order(models: Iterable[str]) -> list[str]:
    """Models so that each comes after those it calls; names that trtkit does not know come first."""
    names = set(models)
    return [*sorted(names - set(_LOAD_ORDER)), *(name for name in _LOAD_ORDER if name in names)]
