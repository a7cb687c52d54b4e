"""A finding of the doctor, and the report of all of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

from fabricd.views.host_check import Level

DOCS = "docs/reference/doctor.md"


class Severity(IntEnum):
    """How bad a finding is. A note says how the host is; it changes no exit status."""

    NOTE = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen, and what to do about it.

    Attributes:
        severity: how bad it is.
        subject: what it concerns: a port, an interface, a process; "host" for all of it.
        seen: what was seen, one sentence or two.
        action: what to do.
        detail: further lines, such as a GID table.
        check: the check that found it; `checks.run` fills it in.
    """

    severity: Severity
    subject: str
    seen: str
    action: str
    detail: tuple[str, ...] = ()
    check: str = ""

    @property
    def docs(self) -> str:
        """The section of the documentation about its check."""
        return f"{DOCS}#{self.check}"


@dataclass(frozen=True, slots=True)
class Report:
    """What the checks found.

    Attributes:
        findings: worst first.
        checks: names of the checks that ran.
        unexamined: what could not be looked at → why.
    """

    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    unexamined: Mapping[str, str] = field(default_factory=dict)

    def level(self, *, strict: bool = False) -> Level:
        """The exit status.

        Args:
            strict: what could not be looked at makes it UNKNOWN where nothing worse was found.
        """
        worst = max((finding.severity for finding in self.findings), default=Severity.NOTE)
        if worst is Severity.NOTE:
            return Level.UNKNOWN if strict and self.unexamined else Level.OK
        return Level.CRITICAL if worst is Severity.CRITICAL else Level.WARNING

    def count(self, severity: Severity) -> int:
        """Findings of one severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def document(self, *, strict: bool = False) -> dict[str, Any]:
        """For ``--json``."""
        level = self.level(strict=strict)
        return {
            "schema": 1,
            "status": level.name.lower(),
            "code": int(level),
            "findings": [
                asdict(finding) | {"severity": finding.severity.name.lower(), "docs": finding.docs}
                for finding in self.findings
            ],
            "checks": list(self.checks),
            "unexamined": dict(self.unexamined),
        }
