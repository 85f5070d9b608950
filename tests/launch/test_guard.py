"""serve.sh refuses a machine of another release or SM before anything starts, and says which image is right."""

import subprocess
from pathlib import Path

import pytest
from trtkit.launch.files import launch_files
from trtkit.launch.guard import guard_lines
from trtkit.launch.mode import Ranks, launch_engines
from trtkit.launch.triton import TritonServer

IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def serve(folder: Path, *, installed: str | None, capability: str | None, sm: int | None = 90) -> tuple[int, str]:
    """Run serve.sh where python3 and nvidia-smi answer so; mpirun says that the server would start."""
    build, tools = folder / "build", folder / "bin"
    (build / "launch").mkdir(parents=True)
    tools.mkdir()
    program(tools, "python3", f"echo {installed}" if installed else "exit 1")
    program(tools, "nvidia-smi", f"printf '{capability}'" if capability else "exit 9")
    program(tools, "mpirun", "echo started")
    launch = launch_engines(Ranks(1), TritonServer(), 1)
    script = launch_files(launch, None, guard_lines("1.2.1", IMAGE, sm))["serve.sh"]
    (build / "launch" / "serve.sh").write_text(script)
    path = f"{tools}:/usr/bin:/bin"
    done = subprocess.run(
        ["/bin/sh", str(build / "launch" / "serve.sh")], env={"PATH": path}, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("installed", ["1.2.1", "1.2.1.2604", "1.2.1+cu131"])
@pytest.mark.parametrize("capability", ["9.0\\n", "8.9\\n9.0\\n", None])
def test_the_machine_of_the_build_starts(installed: str, capability: str | None, tmp_path: Path) -> None:
    assert serve(tmp_path, installed=installed, capability=capability) == (0, "started\n")


@pytest.mark.parametrize("installed", ["1.2.0", "1.2.10", "0.21.0", "1.2.1rc3", None])
def test_another_release_is_refused_with_the_right_image(installed: str | None, tmp_path: Path) -> None:
    code, said = serve(tmp_path, installed=installed, capability="9.0\\n")
    assert code == 3
    assert "RUN-VERSION" in said and f"has {installed or 'none'}" in said and IMAGE in said
    assert "started" not in said


def test_another_sm_is_refused_for_engines_and_not_for_the_llm_api(tmp_path: Path) -> None:
    code, said = serve(tmp_path / "a", installed="1.2.1", capability="8.9\\n8.9\\n")
    assert (code, "RUN-SM: the engines are for SM 90, this machine has SM 89;" in said) == (3, True)
    assert serve(tmp_path / "b", installed="1.2.1", capability="8.9\\n", sm=None)[0] == 0
