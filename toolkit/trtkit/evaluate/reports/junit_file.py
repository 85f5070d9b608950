"""The text of a JUnit file, whatever its cases are. Knows XML and the counts that CI systems read."""

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

# What XML 1.0 cannot hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_text(suite: ElementTree.Element) -> str:
    """The file of one suite, its counts taken from its cases; characters that XML cannot hold are replaced."""
    for element in suite.iter():
        element.attrib.update({key: _allowed(value) for key, value in element.attrib.items()})
        element.text = None if element.text is None else _allowed(element.text)
    found = {name: len(suite.findall(f"testcase/{name}")) for name in ("failure", "skipped")}
    counts = {"tests": len(suite), "failures": found["failure"], "errors": 0, "skipped": found["skipped"]}
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def add_case(
    suite: ElementTree.Element, group: str, name: str, failures: list[str], kind: str, evidence: Sequence[str] = ()
) -> ElementTree.Element:
    """A case that fails with the first of these lines, all of them as its text and the files of `evidence`; one that
    passes without any line."""
    case = ElementTree.SubElement(suite, "testcase", {"classname": group, "name": name})
    if failures:
        ElementTree.SubElement(case, "failure", {"message": failures[0], "type": kind}).text = "\n".join(failures)
        attach(case, evidence)
    return case


def attach(case: ElementTree.Element, evidence: Sequence[str]) -> None:
    """Files that belong to a case, as GitLab and Jenkins read them."""
    if evidence:
        text = "\n".join(f"[[ATTACHMENT|{path}]]" for path in evidence)
        ElementTree.SubElement(case, "system-out").text = text


def add_skipped(suite: ElementTree.Element, skipped: Sequence[Mapping[str, str]]) -> None:
    """A skipped case for each prompt that was not asked."""
    for entry in skipped:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "skipped", "name": entry["name"]})
        ElementTree.SubElement(case, "skipped", {"message": entry["reason"]})


def _allowed(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
