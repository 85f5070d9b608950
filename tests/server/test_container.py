"""Container mode: the exact command, the choice of the program, and a run against a docker of a few lines."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_docker import actions, calls, write_fake
from tiny_build import tiny_build
from trtkit.builds import MANIFEST, open_build
from trtkit.cli.main import cli
from trtkit.errors import InputError, MissingToolError, ServerError
from trtkit.server.backends import STANDIN_SHIM
from trtkit.server.container import ContainerRun, container_command, find_program, plan_container, stop_command
from trtkit.server.container_server import ContainerServer
from trtkit.server.endpoints import Endpoints, free_endpoints
from trtkit.server.launch import ServerFolders, ServerOptions
from trtkit.server.processes import start_time_of
from trtkit.server.state import RunningServer, write_state

MODELS = ("preprocessing", "postprocessing", "tensorrt_llm", "tensorrt_llm_draft", "ensemble", "tensorrt_llm_bls")
RUN = ContainerRun(
    program="docker",
    image="nvcr.io/nvidia/tritonserver:26.03-trtllm-python-py3",
    name="trtkit-1",
    build=Path("/b"),
    backend="engine",
    package=Path("/p"),
    folders=(),
    standin=Path("/b/launch/backends/tensorrtllm"),
    inside=(8000, 8001, 8002),
    endpoints=Endpoints(18000, 18001, 18002),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_build(tmp_path_factory.mktemp("container"))


def test_a_build_for_gpus_runs_its_own_script_in_the_image() -> None:
    assert container_command(RUN) == [
        *("docker", "run", "--rm", "--name", "trtkit-1", "--gpus", "all"),
        *("--ipc=host", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
        *("--publish", "127.0.0.1:18000:8000", "--publish", "127.0.0.1:18001:8001"),
        *("--publish", "127.0.0.1:18002:8002"),
        *("--volume", "/b:/build", "--volume", "/p:/opt/trtkit:ro"),
        *("--workdir", "/build", "--env", "PYTHONPATH=/opt/trtkit"),
        *("nvcr.io/nvidia/tritonserver:26.03-trtllm-python-py3", "sh", "-c"),
        "python3 -c 'import tritonclient.grpc' 2>/dev/null || python3 -m pip install -q 'tritonclient[grpc]'; "
        "exec sh launch/serve.sh",
    ]


def test_podman_names_gpus_in_its_own_way() -> None:
    command = container_command(replace(RUN, program="podman"))
    assert command[0] == "podman" and "--gpus" not in command
    assert command[command.index("--device") + 1] == "nvidia.com/gpu=all"


def test_checkpoints_of_the_llm_api_are_mounted_where_its_yaml_says() -> None:
    command = container_command(replace(RUN, backend="llmapi", folders=("/models/llama",)))
    assert "/models/llama:/models/llama:ro" in command


def test_a_build_for_cpus_gets_no_gpu_and_the_stand_in_over_the_images_backend() -> None:
    command = container_command(replace(RUN, backend="reference"))
    assert "--gpus" not in command
    assert "/b/launch/backends/tensorrtllm:/opt/tritonserver/backends/tensorrtllm:ro" in command
    assert "exec tritonserver --model-repository=model_repository --model-control-mode=explicit" in command[-1]


def test_the_drain_time_is_that_of_the_stop() -> None:
    assert stop_command(RUN, ServerOptions(drain_s=7)) == ["docker", "stop", "--time", "7", "trtkit-1"]


def test_the_image_is_the_one_of_the_builds_release(built: Path) -> None:
    assert "nvcr.io/nvidia/tritonserver:" in plan_container(open_build(built), "docker", "n", RUN.endpoints).image
    build = open_build(built)
    odd = replace(build, config=build.config.model_copy(update={"tensorrt_llm": "9.9.9"}))
    with pytest.raises(InputError, match=r"CONTAINER-IMAGE.*9\.9\.9"):
        plan_container(odd, "docker", "n", RUN.endpoints)


def test_the_first_program_that_is_installed_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match=r"(?s)CONTAINER-TOOL: .*docker and podman are.*--attach") as error:
        find_program("auto")
    assert error.value.exit_code == 3
    write_fake(tmp_path, "podman")
    assert find_program("auto") == "podman"
    with pytest.raises(MissingToolError, match="docker is not installed"):
        find_program("docker")


@pytest.mark.parametrize(("backend", "ready"), [("reference", ()), ("engine", MODELS)])
def test_a_container_is_ready_when_its_models_are_and_is_stopped_by_name(
    built: Path, tmp_path: Path, backend: str, ready: tuple[str, ...]
) -> None:
    notes = write_fake(tmp_path, "docker", ready=ready)
    run = replace(RUN, build=built, backend=backend, standin=built / "launch" / "b", endpoints=free_endpoints())
    with ContainerServer(run, ServerOptions(drain_s=2), {"PATH": str(tmp_path)}) as server:
        assert not server.wait(0.1)
        assert (built / "launch" / "b" / "model.py").read_text() == STANDIN_SHIM
    assert server.wait(1)
    started, stopped = calls(notes)
    assert started == container_command(run)[1:]
    assert stopped == ["stop", "--time", "2", "trtkit-1"]


def test_a_containers_models_that_clients_talk_to_leave_before_those_they_call(built: Path, tmp_path: Path) -> None:
    notes = write_fake(tmp_path, "docker")
    run = replace(RUN, build=built, backend="reference", standin=built / "launch" / "b", endpoints=free_endpoints())
    with ContainerServer(run, ServerOptions(drain_s=2), {"PATH": str(tmp_path)}):
        pass
    unloaded = [model for action, model in actions(notes) if action == "unload"]
    assert set(unloaded) == set(MODELS)
    assert set(unloaded[:2]) == {"ensemble", "tensorrt_llm_bls"}


def test_a_container_that_does_not_start_shows_why(built: Path, tmp_path: Path) -> None:
    notes = write_fake(tmp_path, "docker")
    (notes / "fails").touch()
    run = replace(RUN, build=built, endpoints=free_endpoints())
    with pytest.raises(ServerError, match=r"(?s)docker ended with code 125.*could not select device driver"):
        with ContainerServer(run, ServerOptions(), {"PATH": str(tmp_path)}):
            pass


def test_a_container_leaves_a_build_alone_that_is_served(built: Path, tmp_path: Path) -> None:
    write_fake(tmp_path, "docker")
    folders = ServerFolders(built)
    running = RunningServer(os.getpid(), start_time_of(os.getpid()) or 0.0, "trtkit-test-", free_endpoints())
    write_state(folders.state, running)
    folders.log.parent.mkdir(exist_ok=True)
    folders.log.write_text("of the one that runs")
    run = replace(RUN, build=built, endpoints=free_endpoints())
    with pytest.raises(InputError, match="already served by process"):
        with ContainerServer(run, ServerOptions(), {"PATH": str(tmp_path)}):
            pass
    assert folders.log.read_text() == "of the one that runs"
    folders.state.unlink()


def test_the_command_line_serves_a_build_for_gpus_in_a_container(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = write_fake(tmp_path, "docker")
    (notes / "fails").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    manifest = json.loads((built / MANIFEST).read_text())
    (built / MANIFEST).write_text(json.dumps(manifest | {"backend": "engine"}))
    ports = [word for name in ("http", "grpc", "metrics") for word in (f"--{name}-port", "0")]
    result = CliRunner().invoke(cli, ["serve", str(built), "--container", *ports])
    (built / MANIFEST).write_text(json.dumps(manifest))
    assert result.exit_code == 4
    assert "could not select device driver" in result.stderr
    assert calls(notes)[0][-1].endswith("exec sh launch/serve.sh")
