"""docs/findings.md is what the tables say, every code in the sources is in a table, and every example is complete."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from trtkit.checking.catalogue import all_rules, known_codes
from trtkit.checking.documentation import findings_page
from trtkit.checking.raised_codes import RAISED

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "toolkit" / "trtkit"


def test_the_page_is_what_the_tables_say(assert_golden: Callable[[str, Path], None]) -> None:
    assert_golden(findings_page(), ROOT / "docs" / "findings.md")


@pytest.mark.parametrize("rule", list(all_rules()), ids=lambda rule: rule.code)
def test_an_example_fills_every_sentence(rule: object) -> None:
    from trtkit.checking.rule import Rule

    assert isinstance(rule, Rule)
    finding = rule.finding(rule.example, "file")
    assert finding.cause and finding.fix
    assert rule.when and rule.source


def test_no_code_stands_for_two_severities() -> None:
    severities: dict[str, set[str]] = {}
    for rule in all_rules():
        severities.setdefault(rule.code, set()).add(rule.severity)
    assert {code: found for code, found in severities.items() if len(found) > 1} == {}


def test_a_code_is_either_a_rule_or_raised() -> None:
    assert {rule.code for rule in all_rules()} & {raised.code for raised in RAISED} == set()


@pytest.mark.parametrize("folder", ["checkpoints", "checking"])
def test_every_code_that_the_readers_raise_is_in_the_table(folder: str) -> None:
    raised = {
        code
        for path in (SOURCES / "builds.py", *(SOURCES / folder).rglob("*.py"))
        for code in re.findall(r'\bcode="([A-Z0-9-]+)"', path.read_text(encoding="utf-8"))
    }
    elsewhere = {"CKPT-FOLDER", "CKPT-DEMO", "HUB", "HUB-MISSING", "CHECK-TARGET", "CHECK-IGNORE"}
    assert raised - elsewhere <= known_codes()
