"""Judges the answers of a job's hosts: may they run together? Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fabricd.doctor.checks.host import TOO_LITTLE
from fabricd.doctor.finding import Finding, Severity
from fabricd.plugincheck.answer import Answer, as_document
from fabricd.views.host_check import Level

MAX_NAMES = 8
CHALLENGES_FROM = 6
"""The wire version from which on a plugin lets older ones in with FABRIC_UNPROVEN=1 only."""
DOCS = "docs/operate/doctor.md#the-plugin-on-all-hosts-of-a-job"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the comparison says.

    Attributes:
        hosts: host → its answer, or why there is none.
        findings: worst first.
    """

    hosts: Mapping[str, Answer | str]
    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        """CRITICAL: refused. UNKNOWN: a host gave no answer. WARNING: worse than it could be."""
        worst = max((finding.severity for finding in self.findings), default=Severity.NOTE)
        if worst is Severity.CRITICAL:
            return Level.CRITICAL
        if any(isinstance(answer, str) for answer in self.hosts.values()):
            return Level.UNKNOWN
        return Level.WARNING if worst is Severity.WARNING else Level.OK

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "schema": 1,
            "status": self.level.name.lower(),
            "code": int(self.level),
            "hosts": {
                host: {"problem": answer} if isinstance(answer, str) else as_document(answer)
                for host, answer in self.hosts.items()
            },
            "findings": [
                {"severity": f.severity.name.lower(), "hosts": f.subject, "seen": f.seen,
                 "action": f.action, "detail": list(f.detail), "docs": DOCS}
                for f in self.findings
            ],
        }  # fmt: skip


def judge(hosts: Mapping[str, Answer | str], *, allow_mixed: bool = False) -> Judgement:
    """Compare all hosts.

    Args:
        hosts: host → its answer, or why there is none.
        allow_mixed: hosts that can talk to each other, only not at their best (an older version
            of the wire, TCP in the place of verbs), are warned of and not refused.
    """
    known = {host: answer for host, answer in hosts.items() if isinstance(answer, Answer)}
    mixed = Severity.WARNING if allow_mixed else Severity.CRITICAL
    findings = [
        *_silent(hosts),
        *_plugins(known),
        *_wire(known, mixed),
        *_builds(known),
        *_verbs(known, mixed),
        *_memlock(known, mixed),
        *_rails(known),
        *_variables(known),
    ]
    findings.sort(key=lambda finding: -finding.severity)
    return Judgement(hosts, tuple(findings))


def _silent(hosts: Mapping[str, Answer | str]) -> Iterator[Finding]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for host, answer in hosts.items():
        if isinstance(answer, str):
            reasons[answer].append(host)
    for reason, names in reasons.items():
        yield Finding(
            Severity.WARNING, _listed(names), f"No answer: {reason}.",
            "Is fabricctl installed there (--command names it), and does ssh need no password? "
            "--via names another way.",
        )  # fmt: skip


def _plugins(known: Mapping[str, Answer]) -> Iterator[Finding]:
    for host, answer in known.items():
        if answer.plugin.problem:
            yield Finding(
                Severity.CRITICAL, host, f"{answer.plugin.problem}.",
                "Install the plugin there: a rank without it talks NCCL's own transport, which no "
                "other rank understands.",
            )  # fmt: skip


def _wire(known: Mapping[str, Answer], mixed: Severity) -> Iterator[Finding]:
    speaking = {host: answer for host, answer in known.items() if not answer.plugin.problem}
    dumb = [host for host, answer in speaking.items() if not answer.plugin.wire_max]
    if dumb:
        yield Finding(
            mixed, _listed(dumb), "The library does not say which versions it speaks.",
            "Install this release there.",
        )  # fmt: skip
    ranges = {
        host: (answer.plugin.wire_min, answer.plugin.wire_max)
        for host, answer in speaking.items() if answer.plugin.wire_max
    }  # fmt: skip
    if len({highest for _, highest in ranges.values()}) <= 1:
        return
    rows = _rows(ranges, lambda pair: f"wire {pair[0]} to {pair[1]}")
    lowest_max = min(highest for _, highest in ranges.values())
    strict = [
        host for host, (_, highest) in ranges.items()
        if highest >= CHALLENGES_FROM and known[host].variables.get("FABRIC_UNPROVEN") != "1"
    ]  # fmt: skip
    if max(lowest for lowest, _ in ranges.values()) > lowest_max:
        yield Finding(
            Severity.CRITICAL, "job", "Some hosts' plugins have no wire version in common.",
            "Install one release on all hosts.", rows,
        )  # fmt: skip
    elif lowest_max < CHALLENGES_FROM and strict:
        yield Finding(
            Severity.CRITICAL, _listed(strict),
            f"The plugin there lets no wire version below {CHALLENGES_FROM} in; some hosts know "
            f"{lowest_max} at most.",
            "Install one release on all hosts, or set FABRIC_UNPROVEN=1 while you upgrade.",
            rows,
        )  # fmt: skip
    else:
        yield Finding(
            mixed, "job", f"The plugins speak different wire versions; all know {lowest_max}.",
            "Install one release on all hosts, or accept less with --allow-mixed.", rows,
        )  # fmt: skip


def _builds(known: Mapping[str, Answer]) -> Iterator[Finding]:
    speaking = {h: a for h, a in known.items() if not a.plugin.problem and a.plugin.release}
    releases = {host: answer.plugin.release for host, answer in speaking.items()}
    digests = {host: answer.plugin.sha256 for host, answer in speaking.items()}
    if len(set(releases.values())) > 1:
        yield Finding(
            Severity.WARNING, "job", "The hosts have different releases of the plugin.",
            "Install one release on all hosts.", _rows(releases, str),
        )  # fmt: skip
    elif len(set(digests.values())) > 1:
        yield Finding(
            Severity.WARNING, "job", "The hosts have different builds of one release.",
            "Install the same file on all hosts.", _rows(digests, lambda text: text[:16]),
        )  # fmt: skip


def _verbs(known: Mapping[str, Answer], mixed: Severity) -> Iterator[Finding]:
    kinds = {
        host: tuple(sorted({port.link_layer for port in answer.usable}))
        for host, answer in known.items() if not answer.plugin.problem
    }  # fmt: skip
    if len(set(kinds.values())) > 1:
        reasons = [f"{host}: {_why_not(known[host])}" for host, kind in kinds.items() if not kind]
        rows = _rows(
            kinds, lambda kind: "verbs over " + " and ".join(kind) if kind else "TCP alone"
        )
        yield Finding(
            mixed, "job", "The hosts differ in what they can do with verbs: between hosts that "
            "differ the plugin carries TCP.",
            "`fabricctl doctor` on the hosts without says what lacks; --allow-mixed accepts TCP.",
            (*rows, *reasons[:MAX_NAMES]),
        )  # fmt: skip
        return
    counts = {host: len(answer.usable) for host, answer in known.items()}
    if len(set(counts.values())) > 1:
        rows = _rows(counts, lambda count: f"{count} usable verbs ports")
        broken = [
            f"{host}: {port.name}: {port.problem}"
            for host, answer in known.items() for port in answer.ports if port.problem
        ]  # fmt: skip
        yield Finding(
            Severity.WARNING, "job", "The hosts have different numbers of usable verbs ports.",
            "`fabricctl doctor` on those with fewer.", (*rows, *broken[:MAX_NAMES]),
        )  # fmt: skip


def _memlock(known: Mapping[str, Answer], mixed: Severity) -> Iterator[Finding]:
    small = {
        host: answer.memlock for host, answer in known.items()
        if answer.usable and answer.memlock is not None and answer.memlock < TOO_LITTLE
    }  # fmt: skip
    if small:
        yield Finding(
            mixed, _listed(list(small)),
            "A process may lock too little memory there: verbs cannot register buffers.",
            "LimitMEMLOCK=infinity for what starts jobs (slurmd, containerd, sshd).",
            _rows(small, lambda limit: f"{limit >> 10} KiB"),
        )  # fmt: skip


def _rails(known: Mapping[str, Answer]) -> Iterator[Finding]:
    counts = {host: len(answer.rails) for host, answer in known.items()}
    if len(set(counts.values())) > 1:
        yield Finding(
            Severity.WARNING, "job", "The hosts have different numbers of rails.",
            "Compare their [[links]], or what NCCL_SOCKET_IFNAME and NCCL_IB_HCA take.",
            _rows(counts, lambda count: f"{count} rails"),
        )  # fmt: skip


def _variables(known: Mapping[str, Answer]) -> Iterator[Finding]:
    names = sorted({name for answer in known.values() for name in answer.variables})
    for name in names:
        values = {host: answer.variables.get(name) for host, answer in known.items()}
        if len(set(values.values())) > 1:
            yield Finding(
                Severity.WARNING, "job", f"{name} differs.", "Set it alike on all hosts.",
                _rows(values, lambda value: "unset" if value is None else str(value)),
            )  # fmt: skip


def _why_not(answer: Answer) -> str:
    if not answer.ports:
        return "no verbs device"
    if not answer.libibverbs:
        return "no libibverbs"
    if "verbs" not in answer.plugin.transports:
        return "the plugin there has no verbs"
    port = answer.ports[0]
    return f"{port.name}: {port.problem or 'usable'}"


def _rows(values: Mapping[str, Any], text: Callable[[Any], str]) -> tuple[str, ...]:
    """Hosts by value, most hosts first."""
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for host, value in values.items():
        groups[value].append(host)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return tuple(f"{text(value)}: {_listed(names)}" for value, names in ordered)


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
