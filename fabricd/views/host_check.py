"""Whether this host's links are fit for a job, in one word and one line. Pure.

Takes what the daemon says of itself (``status`` and ``links`` of the control socket) and gives a
verdict with the exit codes of the Monitoring Plugins guidelines: 0 OK, 1 WARNING, 2 CRITICAL,
3 UNKNOWN. It judges this host: a peer that is silent, or drained links, do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

MAX_FINDINGS = 5
"""In the one line; ``--json`` has all."""
CARRIES = frozenset({"up", "suspect", "probation"})
"""States in which a link carries traffic at its full weight."""


class Level(IntEnum):
    """How bad it is; the number is the exit status."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason for a verdict. ``link``: the interface, or "" for the host."""

    level: Level
    text: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check says.

    Attributes:
        findings: worst first.
        carry: links at full weight.
        wanted: links that should carry: all but those that are drained or under maintenance.
        links: all of them.
        mode: observe, steer or migrate; "" when the daemon does not answer.
    """

    findings: tuple[Finding, ...] = ()
    carry: int = 0
    wanted: int = 0
    links: int = 0
    mode: str = ""

    @property
    def level(self) -> Level:
        """The worst finding's."""
        return max((finding.level for finding in self.findings), default=Level.OK)

    def line(self) -> str:
        """One line, with performance data after a bar."""
        if not self.mode:
            return f"FABRIC {self.level.name}: {_joined(self.findings)}"
        said = [_joined(self.findings)] if self.findings else []
        said.append(f"{self.carry} of {self.wanted} links carry, mode {self.mode}")
        if aside := self.links - self.wanted:
            said.append(f"{aside} taken out by an operator")
        data = f"carry={self.carry};;;0;{self.links} wanted={self.wanted};;;0;{self.links}"
        return f"FABRIC {self.level.name}: {'; '.join(said)} | {data}"

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "status": self.level.name.lower(),
            "code": int(self.level),
            "text": self.line(),
            "findings": [
                {"level": finding.level.name.lower(), "link": finding.link, "text": finding.text}
                for finding in self.findings
            ],
            "carry": self.carry,
            "wanted": self.wanted,
            "links": self.links,
            "mode": self.mode,
        }


def unknown(why: str) -> Verdict:
    """The daemon cannot be asked: its links may be well or not."""
    return Verdict((Finding(Level.UNKNOWN, _plain(why)),))


def judge(status: Mapping[str, Any], links: Sequence[Mapping[str, Any]]) -> Verdict:
    """Judge a host.

    Args:
        status: answer to ``{"op": "status"}``.
        links: answer to ``{"op": "links"}``.
    """
    wanted = [x for x in links if not (x["drained"] or x["maintenance"] or x["state"] == "admin")]
    carry = [link for link in wanted if link["state"] in CARRIES]
    # One that was never seen up has lost nothing: it may be a port that is not cabled.
    known = [link for link in wanted if link["state"] != "unknown"]
    findings = [_of_link(link) for link in wanted if link["state"] not in CARRIES]
    if known and 2 * len(carry) <= len(known):
        text = f"{len(known) - len(carry)} of {len(known)} links do not carry as they should"
        findings.append(Finding(Level.CRITICAL, text))
    names = {link["netdev"] for link in wanted}
    findings += [
        Finding(Level.WARNING, f"{netdev} {_plain(why)}", netdev)
        for netdev, why in status.get("unwatched", {}).items()
        if netdev in names
    ]
    findings += _of_host(status)
    findings.sort(key=lambda finding: -finding.level)
    mode = str(status["mode"])
    return Verdict(tuple(findings), len(carry), len(wanted), len(links), mode)


def _of_link(link: Mapping[str, Any]) -> Finding:
    since = "" if link["since_s"] is None else f" for {link['since_s']:.0f} s"
    reason = f" ({_plain(link['reason'])})" if link["reason"] else ""
    text = f"{link['netdev']} {link['state']}{since}{reason}"
    return Finding(Level.WARNING, text, str(link["netdev"]))


def _of_host(status: Mapping[str, Any]) -> list[Finding]:
    found = []
    if not status["prober"]["up"]:
        found.append("the prober is down: carrier and port state alone are seen")
    if status["stop_file"]:
        found.append("the stop file is there: nothing is steered")
    if problems := status["config"]["problems"]:
        found.append(f"the last reload was refused: {_plain(str(problems[0]))}")
    metrics = status["metrics"]
    if metrics["listen"] and not metrics["bound"]:
        found.append(f"metrics {_plain(metrics['text'])}")
    return [Finding(Level.WARNING, text) for text in found]


def _joined(findings: Sequence[Finding]) -> str:
    said = [finding.text for finding in findings[:MAX_FINDINGS]]
    more = len(findings) - len(said)
    return "; ".join(said + ([f"{more} more"] if more else []))


def _plain(text: str) -> str:
    """Fit for the one line: no line ends, and no bar, after which performance data begin."""
    return " ".join(text.split()).replace("|", "/")
