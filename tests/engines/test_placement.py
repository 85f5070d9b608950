"""Target and draft get GPUs of their own where there are enough, and share the first ones where there are not."""

from typing import Any

import pytest
from trtkit.config.load import parse_config
from trtkit.config.schema import BuildConfig
from trtkit.engines.placement import hands_logits_over, place


def pair(count: int | None, target: int, draft: int, pipeline: int = 1) -> BuildConfig:
    document: dict[str, Any] = {
        "name": "pair",
        "target": {"checkpoint": "t", "tensor_parallel": target, "pipeline_parallel": pipeline},
        "draft": {"checkpoint": "d", "tensor_parallel": draft},
        "speculation": {"kind": "draft_target"},
    }
    if count is not None:
        document["gpu"] = {"name": "h100-sxm-80gb", "count": count}
    return parse_config(document, where="pair")


@pytest.mark.parametrize(
    ("config", "target", "draft", "shared"),
    [
        (pair(8, 4, 1), (0, 1, 2, 3), (4,), False),
        (pair(5, 4, 1), (0, 1, 2, 3), (4,), False),
        (pair(4, 4, 1), (0, 1, 2, 3), (0,), True),
        (pair(8, 2, 2, pipeline=2), (0, 1, 2, 3), (4, 5), False),
        (pair(7, 4, 4), (0, 1, 2, 3), (0, 1, 2, 3), True),
        (pair(1, 1, 1), (0,), (0,), True),
        (pair(None, 1, 1), (0,), (0,), True),
    ],
)
def test_where_each_model_runs(
    config: BuildConfig, target: tuple[int, ...], draft: tuple[int, ...], shared: bool
) -> None:
    placement = place(config)
    assert placement.devices == {"target": target, "draft": draft}
    assert placement.shared == shared
    assert placement.num_gpus == max(*target, *draft) + 1


@pytest.mark.parametrize(
    ("config", "target", "draft"),
    [(pair(8, 4, 1), (2, 3, 4, 5), (1,)), (pair(8, 2, 2), (3, 4), (1, 2)), (pair(1, 1, 1), (2,), (1,))],
)
def test_the_orchestrator_comes_first_then_the_draft(
    config: BuildConfig, target: tuple[int, ...], draft: tuple[int, ...]
) -> None:
    placement = place(config)
    assert placement.participants == {"target": target, "draft": draft}
    assert placement.num_processes == 1 + len(target) + len(draft)


@pytest.mark.parametrize(
    ("backend", "acceptance", "pipeline", "over_mpi"),
    [
        ("engine", "logits", 1, True),
        ("engine", "logits", 2, False),
        ("engine", "token", 1, False),
        ("reference", "logits", 1, False),
    ],
)
def test_logits_go_over_mpi_between_engines_without_pipeline_stages(
    backend: str, acceptance: str, pipeline: int, over_mpi: bool
) -> None:
    config = pair(8, 2, 1, pipeline)
    speculation = config.speculation.model_copy(update={"acceptance": acceptance})
    assert hands_logits_over(config.model_copy(update={"backend": backend, "speculation": speculation})) == over_mpi
