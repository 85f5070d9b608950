"""Parity of servers that trtkit did not render: OpenAI-compatible ones, and NVIDIA's llmapi model, both answering from
transformers, so that clean ones are identical."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from completion_server import completion_server
from deployed_tiny import copy_of, deployed_tiny
from trtkit.builds import Build
from trtkit.checkpoints.stop_ids import read_stop_ids
from trtkit.cli.main import cli
from trtkit.engines.release import find_release
from trtkit.repository.llmapi import render_llmapi_repository
from trtkit.server.endpoints import Endpoints
from trtkit.server.launch import ServerFolders
from trtkit.server.processes import start_time_of
from trtkit.server.state import RunningServer, write_state
from trtkit.server.triton_server import TritonServer

NUM_PROMPTS = 4


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    build = deployed_tiny(tmp_path_factory.mktemp("tiny"))
    assert CliRunner().invoke(cli, ["parity", "record", str(build.folder), "--limit", "4"]).exit_code == 0
    return build


def end_ids(build: Build) -> tuple[int, ...]:
    return read_stop_ids(build.source("target"))[0]


def check(url: str, build: Build, out: Path, *arguments: str) -> Result:
    record = str(build.folder / "parity" / "record.json")
    command = ["parity", "check", url, "--record", record, "--dtype", "float32", "--out", str(out), "--json"]
    return CliRunner().invoke(cli, [*command, *arguments])


def cases_of(result: Result) -> list[dict[str, Any]]:
    document: dict[str, Any] = json.loads(result.stdout)
    return [case for prompt in document["prompts"] for case in prompt["cases"]]


@pytest.mark.parametrize(
    ("tells_ids", "compared"), [("token_ids", "ids"), ("logprobs", "ids"), ("no", "text")], ids=lambda value: str(value)
)
def test_a_clean_openai_server_is_identical_by_ids_or_by_text(
    tells_ids: str, compared: str, build: Build, tmp_path: Path
) -> None:
    with completion_server(build.source("target"), end_ids(build), tells_ids=tells_ids) as server:
        result = check(server.url, build, tmp_path)
    assert result.exit_code == 0, result.stderr
    cases = cases_of(result)
    assert {case["verdict"] for case in cases} == {"identical"}
    assert {case["compared"] for case in cases} == {compared}
    assert {case["condition"] for case in cases} >= {"cold", "repeated", "whole", "after-cancel", "concurrent"}
    assert {case["draft_len"] for case in cases} == {None}
    assert all(case["num_prompt_tokens"] for case in cases)


@pytest.mark.parametrize("tells_ids", ["token_ids", "no"])
def test_a_server_that_adds_a_token_to_the_prompt_is_found(tells_ids: str, build: Build, tmp_path: Path) -> None:
    with completion_server(build.source("target"), end_ids(build), tells_ids=tells_ids, prefix_ids=(1,)) as server:
        result = check(server.url, build, tmp_path)
    assert result.exit_code == 1
    for case in cases_of(result):
        assert case["verdict"] == "different"
        assert case["prompt_lengths"][1] == case["prompt_lengths"][0] + 1


def test_a_server_that_serves_another_model_is_found_by_its_text(build: Build, tmp_path: Path) -> None:
    other = deployed_tiny(tmp_path / "other", seed=77)
    with completion_server(other.source("target"), end_ids(build)) as server:
        result = check(server.url, build, tmp_path / "out")
    assert result.exit_code == 1
    # Text says less than ids: bytes that are no UTF-8, as random models say them, all look alike.
    assert json.loads(result.stdout)["different"] >= NUM_PROMPTS - 1


def test_keys_that_a_server_refuses_are_left_out_from_then_on(build: Build, tmp_path: Path) -> None:
    with completion_server(build.source("target"), end_ids(build)) as server:
        assert check(server.url, build, tmp_path, "--limit", "2").exit_code == 0
        refused = [body for body in server.bodies if "return_token_ids" in body]
    assert 1 <= len(refused) < len(server.bodies) / 2


def test_text_without_a_tokenizer_asks_for_one(build: Build, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    record.write_bytes((build.folder / "parity" / "record.json").read_bytes())
    command = ["parity", "check", "", "--record", str(record), "--out", str(tmp_path / "out"), "--json"]
    with completion_server(build.source("target"), end_ids(build)) as server:
        command[2] = server.url
        result = CliRunner().invoke(cli, command)
        assert (result.exit_code, "--tokenizer" in result.stderr) == (2, True), result.stderr
        assert CliRunner().invoke(cli, [*command, "--tokenizer", str(build.tokenizer)]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["parity", "check", "http://127.0.0.1:1/v1"], 2, "--record"),
        (["bench", "http://127.0.0.1:1/v1", "--limit", "2"], 2, "no Triton server"),
        (["parity", "check", "http://127.0.0.1:1"], 2, "/v1"),
    ],
)
def test_what_an_openai_url_cannot_do_is_said(arguments: list[str], exit_code: int, said: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, said in result.stderr) == (exit_code, True), result.stderr


def test_a_draft_length_cannot_be_asked_of_a_foreign_server(build: Build, tmp_path: Path) -> None:
    result = check("http://127.0.0.1:1/v1", build, tmp_path, "--draft-len", "2")
    assert (result.exit_code, "its own draft length" in result.stderr) == (2, True), result.stderr


def test_nobody_at_the_url_is_one_message(build: Build, tmp_path: Path) -> None:
    result = check("http://127.0.0.1:1/v1", build, tmp_path)
    assert (result.exit_code, "no server answers" in result.stderr) == (4, True), result.stderr


LLMAPI_MODEL = '''
import json
import os
import numpy as np
import triton_python_backend_utils as pb_utils
from pathlib import Path
from tokenizers import Tokenizer
from trtkit.evaluate.oracle.oracle import Oracle

FOLDER = Path({folder!r})

class TritonPythonModel:
    """The llmapi model's tensors as NVIDIA's code reads and sends them: streamed text repeats what came before."""

    def initialize(self, args):
        self.oracle = Oracle.load(FOLDER)
        self.tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))

    def execute(self, requests):
        for request in requests:
            value = lambda name: pb_utils.get_input_tensor_by_name(request, name)
            (text,) = value("text_input").as_numpy()
            (streaming,), (count,) = value("streaming").as_numpy(), value("sampling_param_max_tokens").as_numpy()
            assert value("sampling_param_top_k").as_numpy().tolist() == [1]
            prompt_ids = self.tokenizer.encode(text.decode()).ids
            answer = [token for token, _ in self.oracle.answer(prompt_ids, int(count), {end_ids!r})]
            sender = request.get_response_sender()
            for end in range(1 if streaming else len(answer), len(answer) + 1):
                shown = self.tokenizer.decode(answer[:end]).encode()
                reason = b"None" if end < len(answer) else b"length"
                outputs = [
                    pb_utils.Tensor("text_output", np.array([shown], dtype=np.object_)),
                    pb_utils.Tensor("finish_reason", np.array([reason], dtype=np.object_)),
                ]
                final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if end == len(answer) else 0
                sender.send(pb_utils.InferenceResponse(outputs), flags=final)
        return None
'''


@pytest.fixture(scope="module")
def llmapi_address(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("llmapi")
    release = find_release("1.2.1")
    assert release is not None
    files = render_llmapi_repository(release, "model: tiny\n", decoupled=True)
    files["tensorrt_llm/1/model.py"] = LLMAPI_MODEL.format(
        folder=os.fspath(build.source("target")), end_ids=end_ids(build)
    )
    for name, text in files.items():
        path = folder / "model_repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with TritonServer(folder) as server:
        yield server.endpoints.grpc


@pytest.mark.tritonserver
def test_the_llmapi_model_is_checked_by_its_text(llmapi_address: str, build: Build, tmp_path: Path) -> None:
    result = check(f"grpc://{llmapi_address}", build, tmp_path)
    assert result.exit_code == 0, result.stderr
    cases = cases_of(result)
    assert {(case["verdict"], case["compared"], case["draft_len"]) for case in cases} == {("identical", "text", None)}
    assert len(cases) > 3 * NUM_PROMPTS


def of_llmapi(build: Build, folder: Path) -> Build:
    made = copy_of(build, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["config"] |= {"backend": "llmapi"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return made


@pytest.mark.parametrize("command", [["bench"], ["tune"], ["parity", "sampling"]], ids=" ".join)
def test_what_the_llmapi_model_cannot_be_asked_is_refused(command: list[str], build: Build, tmp_path: Path) -> None:
    made = of_llmapi(build, tmp_path / "build")
    result = CliRunner().invoke(cli, [*command, str(made.folder)])
    assert (result.exit_code, "no token ids" in result.stderr) == (2, True), result.stderr


@pytest.mark.tritonserver
@pytest.mark.parametrize("command", [("bench",), ("tune", "--concurrency", "1")], ids=lambda value: value[0])
def test_nor_is_it_asked_at_an_address(command: tuple[str, ...], llmapi_address: str, tmp_path: Path) -> None:
    asked = [*command, f"grpc://{llmapi_address}", "--draft-len", "1", "--no-plot", "--out", str(tmp_path)]
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 2
    assert f"LLMAPI: grpc://{llmapi_address} is served by NVIDIA's llmapi model" in result.stderr


@pytest.mark.tritonserver
def test_a_build_of_the_llmapi_backend_is_checked_as_its_server_is(
    llmapi_address: str, build: Build, tmp_path: Path
) -> None:
    made = of_llmapi(build, tmp_path / "build")
    state, started_at = ServerFolders(made.folder).state, start_time_of(os.getpid())
    assert started_at is not None
    state.parent.mkdir()
    write_state(
        state, RunningServer(os.getpid(), started_at, "nobody", Endpoints(1, int(llmapi_address.split(":")[1]), 2))
    )
    result = CliRunner().invoke(cli, ["parity", "check", str(made.folder), "--limit", "4", "--json"])
    assert result.exit_code == 0, result.stderr
    assert {(case["compared"], case["draft_len"]) for case in cases_of(result)} == {("text", None)}
