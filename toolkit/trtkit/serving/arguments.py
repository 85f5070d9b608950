"""What Triton tells a model at load: parameters and where the build lies. Pure; loads nothing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtkit.errors import InputError


@dataclass(frozen=True)
class ModelArguments:
    """What Triton tells a model at load: its name, its parameters, and the build directory it lies in."""

    name: str
    parameters: Mapping[str, str]
    decoupled: bool
    build: Path

    def parameter(self, key: str, default: str | None = None) -> str:
        """One parameter. An unfilled placeholder counts as missing; raises InputError when there is no default."""
        value = self.parameters.get(key)
        if value is not None and not value.startswith("${"):
            return value
        if default is None:
            raise InputError(
                f"parameter {key} is missing",
                "render the repository again with trtkit build",
                where=f"{self.name}/config.pbtxt",
            )
        return default

    def flag(self, key: str, *, default: bool) -> bool:
        """A parameter that says true or false, as NVIDIA's models spell them. Raises InputError for another word."""
        value = self.parameter(key, str(default)).strip().lower()
        if value not in ("true", "false", "1", "0"):
            raise InputError(
                f"{key} must be true or false, got {value!r}", "mend it", where=f"{self.name}/config.pbtxt"
            )
        return value in ("true", "1")

    def number(self, key: str, default: int | None = None) -> int:
        """A parameter that is a whole number. Raises InputError for anything else."""
        value = self.parameter(key, None if default is None else str(default))
        try:
            return int(value)
        except ValueError:
            raise InputError(
                f"{key} must be a number, got {value!r}", "mend it", where=f"{self.name}/config.pbtxt"
            ) from None

    def numbers(self, key: str) -> tuple[int, ...]:
        """A parameter that lists whole numbers, separated by commas; empty when there is none."""
        return tuple(int(part) for part in self.parameter(key, "").split(",") if part)

    def path(self, key: str) -> Path:
        """A parameter that names a folder; a relative one is meant from the build directory."""
        return self.build / self.parameter(key)


def read_arguments(args: Mapping[str, str]) -> ModelArguments:
    """The `args` of `initialize`. args["model_repository"] is this model's own folder inside the repository."""
    config = json.loads(args["model_config"])
    return ModelArguments(
        name=args["model_name"],
        parameters={key: value["string_value"] for key, value in config["parameters"].items()},
        decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        build=Path(args["model_repository"]).resolve().parents[1],
    )
