"""The parity report in its forms: JSON contract, JUnit, Markdown."""

import io
import json
from xml.etree import ElementTree

from documented_reports import undocumented
from parity_samples import answer, deployed, header, step
from rich.console import Console
from trtkit.cli.parity_tables import render
from trtkit.evaluate.oracle.record import SkippedPrompt
from trtkit.evaluate.oracle.tolerance import NumericProfile
from trtkit.evaluate.parity.check import CheckedCase, CheckResult
from trtkit.evaluate.parity.document import ParityContext, parity_document
from trtkit.evaluate.parity.html import parity_html
from trtkit.evaluate.parity.junit import parity_junit
from trtkit.evaluate.parity.summary import parity_markdown, parity_summary
from trtkit.evaluate.parity.verdicts import Referee

PROFILE = NumericProfile("bfloat16", 2, 16)
REFEREE = Referee(header(), PROFILE)
ANSWER = answer("a", step(10, 9, 5.0), step(12, 13, 0.01))
CONTEXT = ParityContext(
    deployment="build/tiny",
    command="trtkit parity check build/tiny",
    max_new_tokens=2,
    header=header(),
    profile=PROFILE,
    shares={"min_identical": 0.0, "max_near_tie": 1.0},
    skipped=(SkippedPrompt("c", "key-c", "c has 99 tokens | too many"),),
    versions={"trtkit": "0"},
)


def document(*token_ids: tuple[int, ...]) -> dict[str, object]:
    cases = [
        CheckedCase(f"p{i}", "short", 0, "cold", REFEREE.compare(ANSWER, deployed(*ids), 2), deployed(*ids))
        for i, ids in enumerate(token_ids)
    ]
    return parity_document(CheckResult(tuple(cases)), CONTEXT)


ALL_VERDICTS = document((10, 12), (10, 13), (9, 9), (10, 12, 14))


def test_the_document_keeps_the_contract_and_survives_json() -> None:
    kept = json.loads(json.dumps(ALL_VERDICTS, allow_nan=False))
    assert undocumented(kept) == set()
    assert {k: kept[k] for k in ("verdict", "identical", "near_tie", "different")} == {
        "verdict": "different",
        "identical": 1,
        "near_tie": 1,
        "different": 2,
    }
    assert [prompt["verdict"] for prompt in kept["prompts"]] == ["identical", "near-tie", "different", "different"]
    assert kept["prompts"][1]["cases"][0]["divergence"]["deployed_token"] == 13


def test_junit_has_one_case_per_request_and_fails_only_the_different_ones() -> None:
    suite = ElementTree.fromstring(parity_junit(ALL_VERDICTS)).find("testsuite")
    assert suite is not None
    assert {k: suite.attrib[k] for k in ("tests", "failures", "skipped", "errors")} == {
        "tests": "6",
        "failures": "2",
        "skipped": "1",
        "errors": "0",
    }
    failed = [case.attrib["name"] for case in suite if case.find("failure") is not None]
    assert failed == ["p2 draft_len=0 cold", "p3 draft_len=0 cold"]


def test_junit_names_the_position_the_tokens_and_the_margin() -> None:
    text = parity_junit(document((9, 9)))
    assert "at token 0 the oracle says 10 and the deployment 9: margin 5, tolerance" in text
    assert "deployed token ids: [9, 9]" in text


def test_junit_attaches_the_evidence_to_failures_alone() -> None:
    suite = ElementTree.fromstring(parity_junit(ALL_VERDICTS, ["out/report.html"])).find("testsuite")
    assert suite is not None
    said = {case.attrib["name"]: case.findtext("system-out", "") for case in suite}
    assert said["p2 draft_len=0 cold"] == "[[ATTACHMENT|out/report.html]]"
    assert not any("ATTACHMENT" in text for name, text in said.items() if not name.startswith(("p2", "p3")))


def test_a_share_that_is_not_kept_is_in_every_report() -> None:
    broken = {**document((10, 13)), "broken_shares": ["0.00% of the prompts are identical"]}
    suite = ElementTree.fromstring(parity_junit(broken)).find("testsuite")
    assert suite is not None and suite.attrib["failures"] == "1"
    assert suite.find("testcase[@name='shares']/failure").attrib["message"] == broken["broken_shares"][0]  # type: ignore[union-attr]
    assert "- **0.00% of the prompts are identical**" in parity_markdown(broken)
    assert "0.00% of the prompts are identical" in parity_html(broken)


def test_reports_hold_together_whatever_a_text_says() -> None:
    hostile = "a\x00\x0bb | c\n<script>alert(1)</script> ]]> \u202e"
    changed = {**ALL_VERDICTS, "skipped": [{"name": hostile, "reason": hostile}], "command": "trtkit `a`"}
    suite = ElementTree.fromstring(parity_junit(changed)).find("testsuite")
    assert suite is not None and suite[-1].attrib["name"].startswith("a\ufffd\ufffdb | c")
    markdown = parity_markdown(changed)
    (row,) = [line for line in markdown.splitlines() if "alert" in line]
    assert row.count("|") - row.count(r"\|") == 3 and "<script" not in markdown
    assert "Again: `` trtkit `a` ``" in markdown
    assert "<script" not in parity_html(changed)


def test_a_name_is_no_markup_on_a_terminal() -> None:
    (prompt, *_) = ALL_VERDICTS["prompts"]  # type: ignore[misc]
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(render({**ALL_VERDICTS, "prompts": [{**prompt, "name": "[bold]a[/red]"}]}))
    assert "[bold]a[/red]" in console.file.getvalue()  # type: ignore[attr-defined]


def test_markdown_lists_every_difference_and_the_command() -> None:
    text = parity_markdown(ALL_VERDICTS)
    assert "different: 1 of 4 prompts identical, 1 near-tie, 2 different (4 requests, 1 prompts left out)" in text
    assert text.count("at token") == 3
    assert "\n\n| prompt |" in text  # a table that follows a list at once is no table
    assert "`trtkit parity check build/tiny`" in text
    assert r"c has 99 tokens \| too many" in text


def test_a_clean_summary_is_one_line() -> None:
    assert parity_summary(document((10, 12))).startswith("identical: 1 of 1 prompts identical, 0 near-tie")
