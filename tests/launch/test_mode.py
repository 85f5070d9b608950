"""How a deployment is started: mode by the models and their ranks, and the exact command."""

from collections.abc import Callable
from pathlib import Path

import pytest
from trtkit.errors import InputError
from trtkit.launch.container import Container, run_command
from trtkit.launch.files import launch_files
from trtkit.launch.mode import Launch, Ranks, launch_engines, launch_llmapi
from trtkit.launch.script import folded, shell_script
from trtkit.launch.triton import TritonServer

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "engines" / "launch"
SERVER = TritonServer(http_port=8000, grpc_port=8001, metrics_port=8002)
CONTAINER = Container("image:tag", "/srv/build", "/srv/package", (8000, 8001, 8002), folders=("/srv/model",))
CASES: dict[str, Launch] = {
    "leader-tp1": launch_engines(Ranks(1), SERVER, 1),
    "leader-tp4": launch_engines(Ranks(4), SERVER, 4),
    "orchestrator-tp4-tp1": launch_engines(Ranks(4, 1), SERVER, 4),
    "prespawned-tp2-tp1": launch_engines(Ranks(2, 1), SERVER, 4, fast_logits=True),
    "llmapi": launch_llmapi(SERVER),
}


@pytest.mark.parametrize("name", CASES)
def test_the_scripts_are_the_golden_ones(name: str, assert_golden: Callable[[str, Path], None]) -> None:
    for file, text in launch_files(CASES[name], CONTAINER).items():
        assert_golden(text, GOLDEN / name / file)


def test_one_model_is_led_by_its_first_rank() -> None:
    launch = CASES["leader-tp4"]
    assert launch.mode == "leader"
    assert launch.command.count("tritonserver") == 4
    assert launch.command.count(":") == 3 and launch.command[-1] != ":"
    assert launch.command.count("--load-model=tensorrt_llm") == 3, "only the other ranks load a single model"


@pytest.mark.parametrize("draft", [1, 2, 4])
def test_two_models_are_orchestrated_whatever_their_ranks(draft: int) -> None:
    launch = launch_engines(Ranks(4, draft), SERVER, 4)
    assert launch.mode == "orchestrator"
    assert launch.environment == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    assert launch.command.count("tritonserver") == 1
    assert f"4 and {draft} ranks" in launch.reason and "costs" in launch.reason


def test_the_orchestrator_takes_no_memory_of_any_gpu() -> None:
    pools = [word for word in CASES["orchestrator-tp4-tp1"].command if word.startswith("--cuda-memory-pool")]
    assert pools == [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(4)]


def test_fast_logits_spawn_every_process_beforehand() -> None:
    launch = CASES["prespawned-tp2-tp1"]
    assert launch.environment["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] == "0"
    assert launch.command.count("tritonserver") == 1 + 1 + 2


def test_the_llm_api_is_started_plainly() -> None:
    launch = CASES["llmapi"]
    assert launch.mode == "plain" and launch.command[0] == "tritonserver"
    assert not any("auto-complete" in word for word in launch.command)


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(InputError, match="4 ranks need as many GPUs") as error:
        launch_engines(Ranks(4, 1), SERVER, 2)
    assert error.value.where == "gpu.count"


def test_podman_names_devices_instead_of_gpus() -> None:
    podman = Container("image", "/b", "/p", (8000,), program="podman")
    command = run_command(podman, {}, ["true"])
    assert command[0] == "podman" and "nvidia.com/gpu=all" in command and "--gpus" not in command


def test_scripts_quote_what_the_shell_would_read() -> None:
    assert folded(["a", "--b", "c d", "$x"]) == "a \\\n  --b 'c d' '$x'"
    script = shell_script("why", ["run"], {"A": "b c"}, ["cd /"])
    assert script == "#!/bin/sh\n# why\nset -eu\nexport A='b c'\ncd /\nexec run\n"
