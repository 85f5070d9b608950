"""docs/triton-models.md: tensors and parameters of every model, generated from the contract and the demo."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from trtkit.repository.pbtxt import read_config
from trtkit.serving.client_request import NOT_SERVED
from trtkit.serving.contract import DRAFT, NOT_PREPROCESSED, contracts
from trtkit.serving.parameters import PARAMETERS
from trtkit.serving.tensor import ModelContract
from trtkit.standin.requests import NEEDS_GPU

BEGIN = "<!-- generated from the contract; pytest --update-golden writes it -->\n"
REFUSED = {
    "preprocessing": set(NOT_PREPROCESSED),
    "tensorrt_llm": set(NEEDS_GPU),
    "ensemble": set(),
    "tensorrt_llm_bls": set(NOT_SERVED),
}


@pytest.fixture
def page(repository_root: Path) -> Path:
    return repository_root / "docs" / "triton-models.md"


def parameters_of(root: Path, model: str) -> dict[str, str]:
    message = read_config(root / "model_repo" / model / "config.pbtxt")
    return {name: message.parameters[name].string_value for name in sorted(message.parameters)}


def tensor_rows(model: ModelContract) -> Iterator[str]:
    refused = REFUSED.get(model.name, set())
    for tensor in model.inputs:
        use = "-" if tensor.name in refused else "optional" if tensor.optional else "required"
        yield f"| in | `{tensor.name}` | {tensor.dtype} {list(tensor.dims)} | {use} |"
    for tensor in model.outputs:
        yield f"| out | `{tensor.name}` | {tensor.dtype} {list(tensor.dims)} | |"


def parameter_rows(parameters: dict[str, str]) -> Iterator[str]:
    for name, value in parameters.items():
        yield f"| `{name}` | `{value}` | {PARAMETERS.get(name, '')} |"


def generated(root: Path) -> str:
    lines: list[str] = []
    for name, model in contracts("1.2.1", with_draft=True).items():
        if name == DRAFT:
            continue
        lines += ["", f"## `{name}`", "", "| | tensor | type | |", "|---|---|---|---|", *tensor_rows(model)]
        parameters = parameters_of(root, name)
        if parameters:
            lines += ["", "| parameter | demo | |", "|---|---|---|", *parameter_rows(parameters)]
    return "\n".join(lines) + "\n"


def test_the_page_is_what_the_contract_says(page: Path, repository_root: Path, update_golden: bool) -> None:
    before, written = page.read_text().split(BEGIN)
    if update_golden:
        page.write_text(before + BEGIN + generated(repository_root))
        written = generated(repository_root)
    assert written == generated(repository_root)


def test_every_parameter_of_our_own_models_is_explained(repository_root: Path) -> None:
    rolling = {"sink_tokens", "window_tokens", "evict_tokens"}
    ours = ("preprocessing", "postprocessing", "tensorrt_llm_bls")
    used = rolling.union(*(parameters_of(repository_root, model) for model in ours))
    assert used == set(PARAMETERS)
