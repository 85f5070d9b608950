"""Are the libraries of the oracle installed? Imports neither of them."""

from importlib.util import find_spec

from trtkit.errors import MissingToolError


def require_oracle_libraries() -> None:
    """Raise MissingToolError when torch or transformers is not installed."""
    missing = [name for name in ("torch", "transformers") if not _is_installed(name)]
    if missing:
        raise MissingToolError(
            f"the oracle needs {' and '.join(missing)}, which this Python does not have",
            "pip install 'trtkit[reference]', or compare with a record made elsewhere: --record FILE",
            code="ORACLE-MISSING",
        )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # a module without a spec, as when somebody blocked it
        return False
