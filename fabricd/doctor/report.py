"""The doctor's report as text for a terminal. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from fabricd.doctor.facts import GID_HEADER, HostFacts
from fabricd.doctor.finding import Finding, Report, Severity
from telemetry.service.shown import on_one_line

WIDTH = 100
"""Columns, where nothing else is known."""


def lines(report: Report, *, verbose: bool = False, width: int = WIDTH) -> Iterator[str]:
    """The report, line by line.

    Args:
        report: of the checks.
        verbose: notes in full, and each detail.
        width: of a line, in columns; a word that is longer stays whole.
    """
    for finding in report.findings:
        if finding.severity is not Severity.NOTE or verbose:
            yield from finding_lines(finding, finding.docs, width)
    notes = [finding for finding in report.findings if finding.severity is Severity.NOTE]
    if notes and not verbose:
        for note in notes:
            yield from _wrapped("note      ", f"{note.subject}: {note.seen}", width)
        yield ""
    if report.unexamined:
        yield "not looked at:"
        for what, reason in sorted(report.unexamined.items()):
            yield from _wrapped("  ", f"{what}: {reason}", width)
        yield ""
    yield summary(report)


def port_lines(facts: HostFacts) -> Iterator[str]:
    """Each verbs port with its GID table."""
    for port in facts.ports:
        mtu = f", MTU {port.active_mtu}" if port.active_mtu else ""
        behind = ", ".join(port.netdevs) or "no interface"
        words = f"{port}: {port.link_layer} {port.state} {port.rate}{mtu}, {behind}"
        yield on_one_line(words)
        for line in (GID_HEADER, *(gid.line() for gid in port.gids)):
            yield f"  {on_one_line(line)}"
        yield ""


def summary(report: Report) -> str:
    """One line that counts."""
    counts = ", ".join(
        f"{report.count(severity)} {severity.name.lower()}" for severity in reversed(Severity)
    )
    missed = f"; {len(report.unexamined)} not looked at" if report.unexamined else ""
    return f"{len(report.checks)} checks: {counts}{missed}"


def finding_lines(finding: Finding, docs: str, width: int = WIDTH) -> Iterator[str]:
    """A finding in full.

    Args:
        finding: one of a report.
        docs: the section that is named below it.
        width: as of `lines`.
    """
    head = f"{finding.severity.name.lower():<10}"
    yield from _wrapped(head, f"{finding.subject}: {finding.seen}", width)
    yield from _wrapped("  do      ", finding.action, width)
    for line in finding.detail:
        yield from _wrapped(" " * 10, line, width)
    yield f"  see     {docs}"
    yield ""


def _wrapped(head: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        on_one_line(text), width, initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
