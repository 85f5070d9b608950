"""`trtkit serve` on a build for GPUs: one sentence that names the script, and nothing is started."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_build import tiny_build
from trtkit.builds import MANIFEST
from trtkit.cli.main import cli
from trtkit.server.gpu_build import refuse_gpu_build


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_build(tmp_path_factory.mktemp("gpu-build"))


@pytest.mark.parametrize("backend", ["engine", "llmapi"])
def test_a_build_for_gpus_is_refused_with_the_script_that_starts_it(built: Path, backend: str) -> None:
    manifest = json.loads((built / MANIFEST).read_text())
    (built / MANIFEST).write_text(json.dumps(manifest | {"backend": backend}))
    result = CliRunner().invoke(cli, ["serve", str(built), "--http-port", "0", "--grpc-port", "0"])
    (built / MANIFEST).write_text(json.dumps(manifest))
    assert result.exit_code == 3, result.output
    assert "SERVE-BACKEND" in result.stderr and f"backend {backend}" in result.stderr
    assert f"{built}/launch/serve.sh" in result.stderr.replace("\n", "")
    assert "Traceback" not in result.output and not (built / "logs").exists()


def test_a_reference_build_and_a_folder_without_manifest_pass(built: Path, tmp_path: Path) -> None:
    refuse_gpu_build(built)
    refuse_gpu_build(tmp_path)
