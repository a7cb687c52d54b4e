"""Every event has its weight in the log, and none has it by accident."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from whole_host import WholeHost

from fabricd.timeline.levels import ERROR, INFO, KINDS, REASONS, STATES, WARNING, level
from telemetry.events import Event, EventKind, LinkState
from telemetry.statspage import StatsEventKind

REPO = Path(__file__).resolve().parents[4]
S = LinkState


def row(kind, reason="", **fields):
    return Event(EventKind(kind), 1, 1, reason=reason, **fields)


def state(kind, to, was=S.UP):
    return row(kind, from_state=was, to_state=to)


TABLE = [
    (row("flap"), WARNING),
    (row("carrier_up"), INFO),
    *((state("link_state", to), want) for to, want in (
        (S.UP, INFO), (S.SUSPECT, INFO), (S.DOWN, WARNING), (S.HOLD, WARNING),
        (S.PROBATION, INFO), (S.DEGRADED, WARNING), (S.ADMIN, INFO), (S.UNKNOWN, WARNING))),
    (state("link_state", S.HOLD, S.DOWN), INFO),
    (state("path_state", S.DOWN), WARNING),
    (state("rdma_state", S.DOWN), WARNING),
    (state("rdma_state", S.UP), INFO),
    (state("path_state", S.UP, S.DOWN), INFO),
    (row("located", data={"part": "link"}), WARNING),
    (row("located", data={"part": "host"}), WARNING),
    (row("located", data={"part": "unknown"}), WARNING),
    (row("located", data={"part": "nothing"}), INFO),
    (row("condition", data={"condition": "congested"}), WARNING),
    (row("condition", data={"condition": "slow"}), WARNING),
    (row("condition", data={"condition": "fine"}), INFO),
    (row("condition", data={"condition": "route"}), INFO),
    (row("finding", data={"holds": True}), WARNING),
    (row("finding", "module: rx_los", data={"source": "module"}), WARNING),
    (row("finding", data={"holds": False}), INFO),
    (row("risk", data={"named": True}), WARNING),
    (row("risk", data={"named": False}), INFO),
    (row("steer", data={"before": 1000, "weight": 0}), WARNING),
    (row("steer", data={"before": 0, "weight": 1000}), INFO),
    (row("steer", data={"weight": 0}), WARNING),
    (row("would_steer", data={"before": 1000, "weight": 500}), WARNING),
    (row("would_steer", data={"before": 500, "weight": 1000}), INFO),
    (row("mode", "stop file present"), WARNING),
    (row("mode", "stop file removed"), INFO),
    (row("mode", "promoted to steer by uid 0"), INFO),
    (row("mode", "group back promoted to steer by uid 0"), INFO),
    (row("prober", "prober vanished"), WARNING),
    (row("prober", "prober appeared"), INFO),
    (row("prober", "prober was not scheduled: misses of that time are inconclusive"), WARNING),
    (row("prober", "h1: bye on rail0: silence there is by intent", peer="h1"), INFO),
    # Of a version before, which said "farewell".
    (row("prober", "h1: farewell on rail0: silence there is by intent", peer="h1"), INFO),
    (row("probing", data={"state": "never_heard"}), WARNING),
    (row("probing", data={"state": "unbound"}), WARNING),
    (row("probing", data={"state": "off"}), WARNING),
    (row("probing", data={"state": "heard"}), INFO),
    (row("probing", data={"state": "waiting"}), INFO),
    (row("plugin", "all_paths_down"), ERROR),
    (row("plugin", "error"), ERROR),
    (row("plugin", "error", data={"uid": 0}), ERROR),
    (row("plugin", "error", data={"uid": 1001}), WARNING),
    (row("plugin", "path_down"), WARNING),
    (row("plugin", "path_up"), INFO),
    (row("operator", "drain"), INFO),
    (row("peer", "h1 is silent on all rails", data={"silent": True}), WARNING),
    (row("peer", "h1 is heard again", data={"silent": False}), INFO),
    (row("address", "h0 and h1 both name 10.0.0.1: h1 answers", data={"conflict": True}), WARNING),
    (row("address", "h0 and h1 name no address in common", data={"conflict": False}), INFO),
    (row("broker", "connected to b port 8883", data={"connected": True}), INFO),
    (row("broker", "lost b port 8883: refused", data={"connected": False}), WARNING),
    (row("fence", "applied: job train on h1"), INFO),
    *((row("generation", data={"phase": phase}), want) for phase, want in (
        ("running", INFO), ("ended", INFO), ("held", ERROR), ("failed", ERROR))),
    (row("migration", data={"outcome": "recovered"}), WARNING),
    (row("migration", data={"outcome": "failed"}), ERROR),
    (row("slow_rank", data={"named": True}), WARNING),
    (row("slow_rank", data={"named": False}), INFO),
    (row("fence", "not applied in time: job train on h1, by sockets"), ERROR),
    (row("fence", "this host is fenced in job train: lost"), ERROR),
    (row("job", "registered: train"), INFO),
    (row("job", "left: train"), INFO),
    (row("job", "ended without leaving: train"), WARNING),
    (row("daemon", "started"), INFO),
    (row("daemon", "reload refused"), ERROR),
    (row("daemon", "kept in spite of probes (x): max_probe_share or last rail"), WARNING),
    (row("daemon", "metrics endpoint is not bound"), WARNING),
    (row("daemon", "never said before"), WARNING),
]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "wanted"), TABLE, ids=[f"{e.kind}-{e.reason or e.to_state}" for e, _ in TABLE]
)
def test_levels(event, wanted):
    assert level(event) == wanted


def test_every_kind_and_every_state_has_a_row():
    assert set(KINDS) == set(EventKind), "fabricd/timeline/levels.py has no row for a kind"
    assert {event.kind for event, _ in TABLE} == set(EventKind), "this table has none"
    assert set(STATES) == {*LinkState, None}
    said = {begins for begins, _ in REASONS[EventKind.PLUGIN]}
    assert said == {kind.name.lower() for kind in StatsEventKind} | {"left out"}


def reasons_in_the_source():
    """(kind, reason) of each event that the code makes with a text of its own."""
    for file in sorted((REPO / "fabricd").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            kinds = [a.attr for a in node.args if isinstance(a, ast.Attribute)
                     and isinstance(a.value, ast.Name) and a.value.id == "EventKind"]  # fmt: skip
            given = [k.value for k in node.keywords if k.arg == "reason"] + node.args[1:2]
            for value in given if kinds else ():
                first = value.values[0] if isinstance(value, ast.JoinedStr) else value
                if isinstance(first, ast.IfExp):
                    yield from ((kinds[0], x.value) for x in (first.body, first.orelse)
                                if isinstance(x, ast.Constant))  # fmt: skip
                elif isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield kinds[0], first.value


def test_every_reason_that_the_code_gives_has_a_row():
    found = [(EventKind[kind], reason) for kind, reason in reasons_in_the_source()]
    assert len(found) > 10, "the scan finds nothing"
    missing = [
        (kind.value, reason)
        for kind, reason in found
        if kind in REASONS
        and reason.strip() != "prober"  # followed by what it did: each has a row
        and not any(reason.startswith(begins) for begins, _ in REASONS[kind])
    ]
    assert missing == [], "fabricd/timeline/levels.py has no row for these"


async def test_an_outage_is_a_warning_in_the_log_and_its_end_is_not(tmp_path, monkeypatch):
    whole = WholeHost(tmp_path)
    said = []

    class Log:
        def __getattr__(self, name):
            return lambda event, **fields: said.append((name, event, fields.get("to")))

    try:
        whole.host.events._log = Log()
        whole.link("rail1").carrier = False
        whole.host.evaluator.step()
    finally:
        whole.close()
    assert (WARNING, "link_state", "down") in said
    assert (WARNING, "steer", "down") in said or (WARNING, "steer", None) in said, said


LOG = """
from telemetry.service import logs
import structlog
logs.setup(style="logfmt")
log = structlog.get_logger()
for name in ("info", "warning", "error"):
    getattr(log, name)("x")
"""


def test_journald_gets_the_level_as_its_priority():
    done = subprocess.run(
        [sys.executable, "-c", LOG], env=os.environ | {"JOURNAL_STREAM": "1:2"},
        capture_output=True, text=True, timeout=60, check=True, cwd=REPO,
    )  # fmt: skip
    assert re.findall(r"^<(\d)>", done.stderr, re.MULTILINE) == ["6", "4", "3"]
