"""Checks one build YAML with the checkpoints it names. Knows which rules apply to it, not what they say."""

from collections.abc import Mapping
from pathlib import Path

from trtkit.checking.deployment import gather
from trtkit.checking.report import in_order
from trtkit.checking.rule import run_rules
from trtkit.checking.rules import CONFIG_RULES
from trtkit.config.schema import BuildConfig
from trtkit.findings import Finding


def check_config(config: BuildConfig, folders: Mapping[str, Path], *, where: str) -> list[Finding]:
    """Every finding about a build config, errors first.

    `folders` maps a role to the folder of its checkpoint and may lack roles that are not on this disk; what depends
    on those stays unchecked, and a note says so. `where` names the YAML in the findings.
    """
    deployment, problems = gather(config, folders)
    findings = [*problems, *run_rules(CONFIG_RULES, deployment, where)]
    return in_order(findings)
