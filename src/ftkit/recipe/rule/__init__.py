"""What keys must not say together: every rule looks at every recipe, and all of them speak at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftkit.recipe.rule import adapter, at_hand, backend, data, intervals, names, optimization, precision, qat
from ftkit.recipe.rule.base import Rule, Unbuilt, View, code_of
from ftkit.recipe.section.base import Section
from ftkit.recipe.source import Source

RULES: tuple[Rule, ...] = (
    *names.RULES,
    *precision.RULES,
    *qat.RULES,
    *adapter.RULES,
    *data.RULES,
    *optimization.RULES,
    *intervals.RULES,
    *backend.RULES,
    *at_hand.RULES,
)


def check_rules(source: Source, sections: Mapping[str, Section]) -> None:
    """Note everything the rules have to say about the sections that could be built."""
    view = View(sections, {problem.key for problem in source.problems if problem.code == "refused"})
    for rule in RULES:
        try:
            found = list(rule(view))
        except Unbuilt:
            continue  # what the rule would look at has errors of its own
        for finding in found:
            severity: Any = finding.severity
            source.note(code_of(rule), finding.path, finding.message, finding.help, severity=severity)
