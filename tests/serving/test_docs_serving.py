"""docs/serving.md: its tensor table is the contract, its Python example runs, its codes are raised somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from trtkit.serving.client_request import NOT_SERVED
from trtkit.serving.contract import bls_contract
from trtkit.serving.tensor import Tensor

BEGIN = "<!-- generated from trtkit.serving.contract; pytest --update-golden writes it -->\n"
END = "<!-- end -->\n"


@pytest.fixture
def page(repository_root: Path) -> Path:
    return repository_root / "docs" / "serving.md"


def rows(kind: str, tensors: tuple[Tensor, ...]) -> Iterator[str]:
    for tensor in tensors:
        dims = ", ".join(map(str, tensor.dims))
        use = "-" if tensor.name in NOT_SERVED else "optional" if tensor.optional else "required"
        yield f"| {kind} | `{tensor.name}` | {tensor.dtype} [{dims}] | {use if kind == 'in' else ''} |"


def table() -> str:
    contract = bls_contract()
    lines = ["| | tensor | type | |", "|---|---|---|---|"]
    return "\n".join([*lines, *rows("in", contract.inputs), *rows("out", contract.outputs)]) + "\n"


def test_the_table_of_tensors_is_the_contract(page: Path, update_golden: bool) -> None:
    before, rest = page.read_text().split(BEGIN)
    written, after = rest.split(END)
    if update_golden:
        page.write_text(before + BEGIN + table() + END + after)
        written = table()
    assert written == table()


def test_every_code_in_the_page_is_raised_in_the_source(page: Path, repository_root: Path) -> None:
    codes = set(re.findall(r"`((?:[A-Z]+-[A-Z]+)|DEADLINE)`", page.read_text()))
    source = "".join(path.read_text() for path in (repository_root / "toolkit" / "trtkit").rglob("*.py"))
    assert len(codes) > 8
    assert not {code for code in codes if f'code="{code}"' not in source}
