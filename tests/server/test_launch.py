"""The command line, environment and load order of a server; nothing is started."""

from pathlib import Path

import pytest
from trtkit.errors import InputError, MissingToolError
from trtkit.server.endpoints import Endpoints, free_endpoints, refuse_busy
from trtkit.server.installation import TritonInstallation, refuse_numpy, refuse_python, refuse_small_shm
from trtkit.server.launch import ServerFolders, ServerOptions, load_order, server_command, server_environment

INSTALLATION = TritonInstallation(
    version="0.7.0",
    binary=Path("/w/bin/tritonserver"),
    python_backend=Path("/w/backends/python"),
    stub=Path("/w/stubs/3.11/stub"),
    library_path=(Path("/w/libs"), Path("/py/lib")),
    python_bin=Path("/venv/bin"),
)


def command() -> list[str]:
    return server_command(INSTALLATION, ServerFolders(Path("/b")), Endpoints(1, 2, 3), "prefix-")


def test_models_load_one_by_one_from_strict_configs() -> None:
    assert {"--model-control-mode=explicit", "--disable-auto-complete-config"} <= set(command())


def test_ports_addresses_and_folders_are_the_builds() -> None:
    expected = {
        "--model-repository=/b/model_repository",
        "--backend-directory=/b/launch/backends",
        "--http-port=1",
        "--grpc-port=2",
        "--metrics-port=3",
        "--grpc-address=127.0.0.1",
        "--backend-config=python,shm-region-prefix-name=prefix-",
    }
    assert expected <= set(command())


def test_triton_itself_does_not_wait_for_requests_which_had_their_time_before() -> None:
    assert "--exit-timeout-secs=1" in command()


def test_the_environment_is_made_and_not_inherited() -> None:
    environment = server_environment(INSTALLATION, ServerOptions(num_threads=2))
    assert environment["LD_LIBRARY_PATH"] == "/w/libs:/py/lib"
    assert environment["PATH"].startswith("/venv/bin:")
    assert environment["OMP_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in server_environment(INSTALLATION, ServerOptions())
    assert "HOME" not in environment


def test_models_come_after_those_they_call() -> None:
    models = ["tensorrt_llm_bls", "ensemble", "tensorrt_llm", "preprocessing", "mine", "tensorrt_llm_draft"]
    assert load_order(models) == [
        "mine",
        "preprocessing",
        "tensorrt_llm",
        "tensorrt_llm_draft",
        "ensemble",
        "tensorrt_llm_bls",
    ]


def test_free_ports_differ_and_are_free() -> None:
    endpoints = free_endpoints()
    assert len(set(endpoints.ports.values())) == 3
    refuse_busy(endpoints)


def test_a_busy_port_is_refused_with_its_number_and_option() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        free = free_endpoints()
        with pytest.raises(InputError, match=rf"(?s)PORT-BUSY: port {port} \(grpc\).*--grpc-port"):
            refuse_busy(Endpoints(free.http_port, port, free.metrics_port))


@pytest.mark.parametrize("version", [(3, 9), (3, 12), (3, 13)])
def test_a_python_that_triton_cannot_embed_is_refused(version: tuple[int, int]) -> None:
    with pytest.raises(MissingToolError, match=r"(?s)TRITON-PYTHON: .*use Python 3\.11") as error:
        refuse_python(version)
    assert error.value.exit_code == 3


def test_numpy_2_is_refused_because_inputs_would_be_silently_wrong() -> None:
    with pytest.raises(MissingToolError, match=r"(?s)TRITON-NUMPY: .*numpy<2"):
        refuse_numpy("2.1.0")
    refuse_numpy("1.26.4")


def test_a_small_shared_memory_is_refused_with_both_sizes() -> None:
    with pytest.raises(MissingToolError, match=r"(?s)has 3 MiB free; the server needs 64 MiB.*--shm-size"):
        refuse_small_shm(3 << 20)
    refuse_small_shm(64 << 20)
