"""Who may import whom, where heavy libraries live, and that the folder triton/ hides nobody's triton."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "toolkit" / "trtkit"

# Package or module directly below trtkit -> the others it may import.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "progress": set(),
    "acceptance": set(),
    "draft_length": {"acceptance"},
    "findings": {"errors"},
    "artifacts": {"errors"},
    "config": {"errors", "artifacts"},
    "builds": {"errors", "config"},
    "checkpoints": {"errors", "findings", "progress", "artifacts"},
    "conversion": {"errors", "progress", "artifacts", "config", "checkpoints", "findings"},
    "calibration": {
        "errors",
        "progress",
        "artifacts",
        "config",
        "checkpoints",
        "conversion",
        "findings",
        "reference",
        "checking",
        "prompts",
    },
    "engines": {"errors", "progress", "artifacts", "config", "findings"},
    "launch": {"errors"},
    "export": {"errors", "config", "launch"},
    "reference": {"errors", "acceptance", "draft_length", "checkpoints", "progress"},
    "serving": {"errors", "acceptance", "draft_length"},
    "standin": {"errors", "acceptance", "serving", "reference", "engines"},
    "repository": {"errors", "artifacts", "config", "engines", "serving", "findings"},
    "server": {"errors", "progress", "artifacts", "builds", "config", "repository", "serving", "engines", "launch"},
    "client": {"errors", "acceptance", "serving"},
    "planning": {"errors", "artifacts", "config", "checkpoints", "findings", "engines"},
    "checking": {
        "errors",
        "findings",
        "builds",
        "config",
        "checkpoints",
        "conversion",
        "engines",
        "repository",
        "planning",
        "reference",
        "serving",
        "doctor",
    },
    "doctor": {"errors", "findings", "server"},
    "demo": {"errors", "progress", "artifacts", "checkpoints"},
    "prompts": {"errors", "artifacts"},
    "pytest": {"builds", "evaluate"},
    "evaluate": {
        "prompts",
        "errors",
        "progress",
        "artifacts",
        "builds",
        "acceptance",
        "config",
        "checkpoints",
        "engines",
        "reference",
        "serving",
        "client",
        "server",
        "planning",
    },
    "pipeline": {
        "errors",
        "progress",
        "artifacts",
        "builds",
        "findings",
        "config",
        "checkpoints",
        "calibration",
        "conversion",
        "engines",
        "repository",
        "checking",
        "serving",
        "doctor",
        "planning",
        "launch",
    },
}
EVERYTHING = {"cli", "__main__", "__init__"}
# The same inside evaluate; what stands beside these packages may import them all.
EVALUATE_MAY_IMPORT: dict[str, set[str]] = {
    "endpoints": set(),
    "reports": set(),
    "oracle": set(),
    "parity": {"endpoints", "oracle", "reports"},
    "checkpoint": {"oracle", "reports"},
    "sampling": {"endpoints", "oracle", "checkpoint", "reports"},
    "bench": {"endpoints", "oracle", "reports"},
    "tune": {"endpoints", "oracle", "bench", "reports"},
}

# Third-party library -> the packages or modules (path prefixes below trtkit) it may be imported in.
HOMES: dict[str, tuple[str, ...]] = {
    "click": ("cli/",),
    "rich": ("cli/",),
    "pydantic": ("config/",),
    "yaml": ("config/", "engines/llmapi.py", "checking/subjects/llm_yaml.py"),
    "torch": ("checkpoints/", "conversion/", "reference/", "standin/", "evaluate/", "demo/", "calibration/"),
    "transformers": ("checkpoints/", "conversion/", "evaluate/", "prompts/", "demo/", "calibration/"),
    "tritonclient": ("serving/kserve.py", "client/async_client.py", "repository/pbtxt.py"),
    "triton_python_backend_utils": ("serving/triton_io.py",),
    "modelopt": ("calibration/", "conversion/"),
    "tensorrt_llm": ("engines/runtime.py",),
    "matplotlib": ("evaluate/", "planning/", "calibration/"),
}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """Every dotted name that a file imports, at any depth of the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_point_down(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in EVERYTHING:
        return
    used = {name.split(".")[1] for name in imports_of(path) if name.startswith("trtkit.")} - {own, "__version__"}
    assert used <= MAY_IMPORT[own], f"{own} may not import {sorted(used - MAY_IMPORT[own])}"


@pytest.mark.parametrize("package", EVALUATE_MAY_IMPORT)
def test_imports_point_down_inside_evaluate(package: str) -> None:
    files = (PACKAGE / "evaluate" / package).glob("*.py")
    names = [name.split(".") for path in files for name in imports_of(path) if name.startswith("trtkit.evaluate.")]
    used = {parts[2] for parts in names} - {package}
    assert used <= EVALUATE_MAY_IMPORT[package]


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_heavy_libraries_stay_at_home(path: Path) -> None:
    relative = path.relative_to(PACKAGE).as_posix()
    for name in imports_of(path):
        homes = HOMES.get(name.split(".")[0])
        assert homes is None or relative.startswith(homes), f"{relative} imports {name}; its home is {homes}"


def test_help_imports_no_heavy_library() -> None:
    probe = (
        "import sys; from click.testing import CliRunner; from trtkit.cli.main import cli;"
        "CliRunner().invoke(cli, ['--help'], standalone_mode=True);"
        "print(sorted({'torch', 'transformers', 'tensorrt_llm', 'pydantic', 'numpy', 'tritonclient', 'rich'}"
        " & sys.modules.keys()))"
    )
    assert subprocess.check_output([sys.executable, "-P", "-c", probe], text=True).strip() == "[]"


def test_no_commands_own_help_and_no_build_needs_what_the_base_install_lacks() -> None:
    probe = (
        "import sys; from click.testing import CliRunner; from trtkit.cli.main import cli; import trtkit.pipeline.run;"
        "codes = [CliRunner().invoke(cli, [name, '--help']).exit_code for name in cli.list_commands(None)];"
        "print(len(codes) > 10, set(codes), sorted({'torch', 'transformers', 'matplotlib'} & sys.modules.keys()))"
    )
    assert subprocess.check_output([sys.executable, "-P", "-c", probe], text=True).strip() == "True {0} []"


def test_the_folder_triton_is_no_python_package() -> None:
    assert not list((ROOT / "triton").rglob("__init__.py"))
    assert not (ROOT / "tests" / "__init__.py").exists()
    assert str(ROOT) not in sys.path, "the repository root on sys.path makes triton/ look like OpenAI Triton"
