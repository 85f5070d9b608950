"""Every finding there is, for the documentation and for --ignore. Knows the tables, applies none."""

from collections.abc import Iterator
from typing import Any

from trtkit.checking.raised_codes import RAISED
from trtkit.checking.rule import Rule
from trtkit.checking.rules import CONFIG_RULES
from trtkit.checking.rules.agreement import AGREEMENT_RULES
from trtkit.checking.rules.edges import EDGE_RULES
from trtkit.checking.rules.engine import ENGINE_RULES
from trtkit.checking.rules.hf_checkpoint import HF_RULES
from trtkit.checking.rules.llm_yaml import LLM_YAML_RULES
from trtkit.checking.rules.machine import BUILT_RULES, MACHINE_RULES
from trtkit.checking.rules.parameters import PARAMETER_RULES
from trtkit.checking.rules.repository import REPOSITORY_RULES
from trtkit.checking.rules.scales import SCALE_RULES
from trtkit.checking.rules.trtllm_checkpoint import TRTLLM_CHECKPOINT_RULES


def all_rules() -> Iterator[Rule[Any]]:
    """Every rule, in the order of the documentation; a code shared by two tables comes twice."""
    yield from CONFIG_RULES
    yield from HF_RULES
    yield from TRTLLM_CHECKPOINT_RULES
    yield from SCALE_RULES
    yield from ENGINE_RULES
    yield from REPOSITORY_RULES
    yield from PARAMETER_RULES
    yield from AGREEMENT_RULES
    yield from EDGE_RULES
    yield from LLM_YAML_RULES
    yield from BUILT_RULES
    yield from MACHINE_RULES


def known_codes() -> set[str]:
    """Every code that a check may report."""
    return {rule.code for rule in all_rules()} | {raised.code for raised in RAISED}
