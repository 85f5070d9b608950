"""TritonClient where there is no server."""

import pytest
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.errors import ServerError


def test_a_closed_client_says_so() -> None:
    client = TritonClient("127.0.0.1:1")
    client.close()
    client.close()
    for stream in (True, None):
        with pytest.raises(ServerError, match="CLIENT-CLOSED"):
            client.generate(GenerateRequest("a", 4, stream=stream))
    with pytest.raises(ServerError, match="CLIENT-CLOSED"):
        client.check_ready()
