"""Values to config.pbtxt and back, as Triton's own protobuf message. Knows the schema, not what trtkit deploys."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from trtkit.errors import InputError
from trtkit.serving.tensor import ModelContract, Tensor

# A comment, and the texts before it that may hold its sign.
_COMMENT = re.compile(r"""^((?:[^#"']|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')*)#.*$""")
_UNSET_PARAMETER = re.compile(r'string_value:\s*"\$\{\w+\}"')


@dataclass(frozen=True)
class EnsembleStep:
    """One model of an ensemble: its tensors by name -> the ensemble's tensors."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True)
class ModelConfig:
    """What trtkit says in one config.pbtxt. parameters keep their order; steps make it an ensemble."""

    contract: ModelContract
    max_batch_size: int
    backend: str = "python"
    decoupled: bool = False
    preferred_batch_size: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    steps: Sequence[EnsembleStep] = ()


def to_pbtxt(config: ModelConfig) -> str:
    """The text of config.pbtxt: equal values give equal text, and it has been parsed back to the same message."""
    message = _message(config)
    # as_utf8 and the fixed field order of the message make the text deterministic; maps are printed sorted.
    text: str = text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True)
    if parse_pbtxt(text, where=config.contract.name) != message:
        raise AssertionError(f"{config.contract.name}: config.pbtxt does not read back as it was written")
    return text


def parse_pbtxt(text: str, where: str) -> Any:
    """The ModelConfig message of a config.pbtxt. Raises InputError with line and column, or naming a placeholder.

    A placeholder that is the whole value of a parameter is none: NVIDIA's templates leave those of unset options there,
    and its backend reads them as unset. Nor is one in a comment.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        if "${" in _UNSET_PARAMETER.sub("", _COMMENT.sub(r"\1", line)):
            raise InputError(
                f"line {number} holds a placeholder that nobody filled in: {line.strip()}",
                "render the repository with trtkit build instead of copying templates",
                code="PBTXT-PLACEHOLDER",
                where=f"{where}:{number}",
            )
    message = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise InputError(
            f"Triton could not read it: {error}", "compare with model_repo/", code="PBTXT-PARSE", where=where
        ) from None
    return message


def read_config(path: Path) -> Any:
    """Parse a config.pbtxt file. Raises InputError when it is missing or unreadable."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read it: {error}",
            "render the repository again with trtkit build",
            code="PBTXT-FILE",
            where=str(path),
        ) from None
    return parse_pbtxt(text, where=str(path))


def config_of(document: dict[str, Any]) -> Any:
    """The ModelConfig of the JSON that a server shows; fields of a newer server that we do not know are left out."""
    return json_format.ParseDict(document, model_config_pb2.ModelConfig(), ignore_unknown_fields=True)


def _message(config: ModelConfig) -> Any:
    message = model_config_pb2.ModelConfig(name=config.contract.name, max_batch_size=config.max_batch_size)
    message.input.extend(_input(tensor) for tensor in config.contract.inputs)
    message.output.extend(_output(tensor) for tensor in config.contract.outputs)
    for key, value in config.parameters.items():
        message.parameters[key].string_value = value
    if config.steps:
        message.platform = "ensemble"
        message.ensemble_scheduling.step.extend(_step(step) for step in config.steps)
        return message
    message.backend = config.backend
    message.instance_group.add(count=1, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
    message.model_transaction_policy.decoupled = config.decoupled
    if config.preferred_batch_size is not None:
        message.dynamic_batching.preferred_batch_size.append(config.preferred_batch_size)
        message.dynamic_batching.max_queue_delay_microseconds = 0
        message.dynamic_batching.default_queue_policy.max_queue_size = 0
    return message


def _input(tensor: Tensor) -> Any:
    message = model_config_pb2.ModelInput(
        name=tensor.name, data_type=_data_type(tensor), dims=tensor.dims, optional=tensor.optional
    )
    message.allow_ragged_batch = tensor.ragged
    if tensor.scalar:
        message.reshape.SetInParent()  # a reshape with an empty shape, which no value could express
    return message


def _output(tensor: Tensor) -> Any:
    return model_config_pb2.ModelOutput(name=tensor.name, data_type=_data_type(tensor), dims=tensor.dims)


def _data_type(tensor: Tensor) -> int:
    return int(model_config_pb2.DataType.Value(f"TYPE_{tensor.dtype}"))


def _step(step: EnsembleStep) -> Any:
    message = model_config_pb2.ModelEnsembling.Step(model_name=step.model, model_version=-1)
    message.input_map.update(step.inputs)
    message.output_map.update(step.outputs)
    return message
