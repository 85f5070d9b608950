"""What a model's config says at this start: its file, or the file with the server's own address. Pure reading."""

from pathlib import Path

from google.protobuf import json_format

from trtkit.repository.pbtxt import read_config
from trtkit.server.endpoints import Endpoints

GRPC_ADDRESS = "grpc_address"
_ANY_HOST = ("0.0.0.0", "::")


def config_override(repository: Path, model: str, endpoints: Endpoints) -> str | None:
    """The config as JSON when the model must be told another gRPC address than its file says, else None.

    A config that cannot be read is left to Triton, whose own message about it is better.
    """
    path = repository / model / "config.pbtxt"
    if GRPC_ADDRESS not in path.read_text(encoding="utf-8", errors="replace"):
        return None
    message = read_config(path)
    host = "127.0.0.1" if endpoints.host in _ANY_HOST else endpoints.host
    address = f"{host}:{endpoints.grpc_port}"
    if message.parameters[GRPC_ADDRESS].string_value == address:
        return None
    message.parameters[GRPC_ADDRESS].string_value = address
    return str(json_format.MessageToJson(message, preserving_proto_field_name=True))
