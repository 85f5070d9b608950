"""A parity document as JUnit XML, one case per request, for CI systems. Knows the document, no results behind it."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from trtkit.evaluate.parity.text_answers import UNKNOWN
from trtkit.evaluate.reports.junit_file import add_case, add_skipped, attach, junit_text


def parity_junit(document: Mapping[str, Any], evidence: Sequence[str] = ()) -> str:
    """The XML text. A case of verdict different is a failure, with the files of `evidence` attached; a prompt that was
    left out is a skipped case; the shares are one case."""
    suite = ElementTree.Element("testsuite", {"name": f"trtkit parity {document['deployment']}"})
    for prompt in document["prompts"]:
        for case in prompt["cases"]:
            _add_case(suite, prompt, case, evidence)
    for found in document["diagnosis"]:
        if found["fault"] == "draft-length":  # no request has it: the answers are right
            add_case(suite, "parity", "draft-length", [found["evidence"]], "draft-length", evidence)
    add_case(suite, "parity", "shares", list(document.get("broken_shares", ())), "shares", evidence)
    add_skipped(suite, document["skipped"])
    return junit_text(suite)


def _add_case(
    suite: ElementTree.Element, prompt: Mapping[str, Any], case: Mapping[str, Any], evidence: Sequence[str]
) -> None:
    name = f"{prompt['name']} draft_len={case['draft_len']} {case['condition']}"
    element = ElementTree.SubElement(suite, "testcase", {"classname": f"parity.{prompt['group']}", "name": name})
    text = explain_case(case)
    if text is None:
        return
    if case["verdict"] == "different":
        failure = ElementTree.SubElement(element, "failure", {"message": text, "type": "different"})
        failure.text = f"deployed token ids: {case['token_ids']}"
        attach(element, evidence)
    else:
        ElementTree.SubElement(element, "system-out").text = f"{case['verdict']}: {text}"


def explain_case(case: Mapping[str, Any]) -> str | None:
    """One line on what differs in a case; None when nothing does."""
    if case["prompt_lengths"] is not None:
        oracle, deployed = case["prompt_lengths"]
        return f"the prompt has {oracle} tokens for the oracle and {deployed} for the deployment: tokenizers differ"
    return None if case["divergence"] is None else _explain_divergence(case["divergence"])


def _explain_divergence(divergence: Mapping[str, Any]) -> str:
    """One line: where, which tokens, how far apart the oracle holds them, and what rounding explains."""
    margin, deployed = divergence["margin"], divergence["deployed_token"]
    if margin is None and None not in (divergence["oracle_token"], deployed):
        return f"at token {divergence['position']} the deployment says {deployed}, which is no token of the model"
    if margin is None:
        what = "goes on" if divergence["oracle_token"] is None else "stops"
        return f"at token {divergence['position']} the deployment {what} where the oracle does not"
    relation = "at least " if divergence["margin_is_bound"] else ""
    said = "text that none of the oracle's next tokens has" if deployed == UNKNOWN else deployed
    return (
        f"at token {divergence['position']} the oracle says {divergence['oracle_token']} and the deployment "
        f"{said}: margin {relation}{margin:.4g}, tolerance {divergence['tolerance']:.4g}"
    )
