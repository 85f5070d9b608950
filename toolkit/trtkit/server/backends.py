"""The backend directory of one server: Triton's Python backend and the stand-in `tensorrtllm`. Knows files only."""

import contextlib
import py_compile
import shutil
from collections.abc import Iterator
from pathlib import Path

from trtkit.artifacts import write_text
from trtkit.errors import ServerError
from trtkit.server.installation import TritonInstallation

# The class is in the package, as with every model.py; triton/backends/ has the same file for containers.
STANDIN_SHIM = "from trtkit.standin.model import StandIn as TritonPythonModel  # noqa: F401\n"
_PYTHON_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")


def prepare_backends(installation: TritonInstallation, folder: Path) -> Path:
    """Fill `folder` with the backends `python` and `tensorrtllm` and return it; what is there is kept up to date.

    The stub of this interpreter's version must lie beside libtriton_python.so, and the wheel keeps it elsewhere.
    """
    python = folder / "python"
    try:
        python.mkdir(parents=True, exist_ok=True)
        sources = [installation.python_backend / name for name in _PYTHON_BACKEND_FILES]
        for source in (*sources, installation.stub):
            _copy_if_changed(source, python / source.name)
        write_text(folder / "tensorrtllm" / "model.py", STANDIN_SHIM)
    except OSError as error:
        raise ServerError(
            f"cannot write {folder}: {error.strerror or error}", "free space, or make the build directory writable"
        ) from error
    return folder


@contextlib.contextmanager
def compiled_shims(repository: Path) -> Iterator[None]:
    """Keep the bytecode of every model.py in place while models load, and leave the repository as it was.

    The stub would write it during the load, and Triton takes the new file for a changed model and loads that twice.
    """
    shims = list(repository.glob("*/*/model.py"))
    try:
        for shim in shims:
            with contextlib.suppress(OSError, py_compile.PyCompileError):  # Triton's own message about it is better
                py_compile.compile(str(shim), doraise=True)
        yield
    finally:
        for shim in shims:
            shutil.rmtree(shim.parent / "__pycache__", ignore_errors=True)


def _copy_if_changed(source: Path, copy: Path) -> None:
    if copy.exists() and copy.stat().st_size == source.stat().st_size:
        return
    beside = copy.with_name(f".{copy.name}.tmp")
    shutil.copy(source, beside)
    beside.replace(copy)
